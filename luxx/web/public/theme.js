// Runs before the first paint, so that a remembered theme shows no other one first.
;(function () {
  var choice = null
  var language = null
  try {
    choice = localStorage.getItem('luxx.theme')
    language = localStorage.getItem('luxx.language')
  } catch {
    // Storage is blocked: the system's theme and language apply.
  }
  var isDark = choice === 'dark' || (choice !== 'light' && matchMedia('(prefers-color-scheme: dark)').matches)
  var root = document.documentElement
  root.dataset.theme = isDark ? 'dark' : 'light'
  root.lang = language || (/^zh/i.test(navigator.language) ? 'zh' : 'en')
})()
