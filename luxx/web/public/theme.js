// Runs before the first paint, so that a remembered theme shows no other one first.
;(function () {
  var choice = null
  var language = null
  var looks = {}
  try {
    choice = localStorage.getItem('luxx.theme')
    language = localStorage.getItem('luxx.language')
    looks.text = localStorage.getItem('luxx.textSize')
    looks.contrast = localStorage.getItem('luxx.contrast')
    looks.motion = localStorage.getItem('luxx.motion')
  } catch {
    // Storage is blocked: the system's theme and language apply.
  }
  var isDark = choice === 'dark' || (choice !== 'light' && matchMedia('(prefers-color-scheme: dark)').matches)
  var root = document.documentElement
  root.dataset.theme = isDark ? 'dark' : 'light'
  for (var name in looks) if (looks[name]) root.dataset[name] = looks[name]
  root.lang = language || navigator.language || 'en'
})()
