// Of the page that stands in when the server cannot be reached: its language, and trying again.
;(function () {
  var RETRY_MS = 10000
  var language = /^zh/i.test(document.documentElement.lang) ? 'zh' : 'en'
  document.querySelectorAll('main').forEach(function (main) {
    main.hidden = main.lang !== language
    main.querySelector('button').addEventListener('click', retry)
  })

  // The page that was asked for is loaded only when the server answers: else the browser would flicker.
  function retry() {
    fetch('/health', { cache: 'no-store' }).then(
      function () {
        location.reload()
      },
      function () {},
    )
  }
  window.addEventListener('online', retry)
  setInterval(retry, RETRY_MS)
})()
