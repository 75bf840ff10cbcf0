/** Bytes of the API that are no JSON envelope: exported files, and imported ones. */
import { ApiError, asApiError, failureOf, signedFetch } from './client'
import { accessToken } from './tokens'

async function fetchOrFail(request: Request): Promise<Response> {
  const response = await signedFetch(request).catch((error: unknown) => {
    throw asApiError(error)
  })
  if (!response.ok) throw withPaths(await failureOf(response))
  return response
}

/** The error of a document, which says where in it each wrong field is. */
export function withPaths(error: ApiError): ApiError {
  const fields = Object.entries(error.fields).map(([path, why]) => [path.replace(/^\$\.?/, ''), why].filter(Boolean).join(': '))
  return fields.length === 0 ? error : new ApiError(fields.join('\n'), error.status, error.kind, error.detail)
}

/** The bytes at an address of the API. */
export async function readFile(path: string): Promise<Blob> {
  return (await fetchOrFail(new Request(new URL(path, window.location.origin)))).blob()
}

/** Sends a document, or a form, and returns the `data` of the answer. */
export async function sendDocument<T>(path: string, document: string | FormData, mediaType = '', method = 'POST'): Promise<T> {
  const address = new URL(path, window.location.origin)
  // That of a form has a boundary, which the browser adds.
  const headers = mediaType ? { 'content-type': mediaType } : undefined
  const response = await fetchOrFail(new Request(address, { method, body: document, headers }))
  return ((await response.json()) as { data: T }).data
}

/** Posts a form with files. `onProgress` gets the share that is sent, 0 to 1. Raises Error with the server's reason. */
export async function postForm(path: string, body: FormData, onProgress: (share: number) => void): Promise<void> {
  const token = await accessToken()
  await new Promise<void>((resolve, reject) => {
    // Only this interface reports how much of a body is sent.
    const request = new XMLHttpRequest()
    request.open('POST', path)
    request.setRequestHeader('accept', 'application/json')
    if (token) request.setRequestHeader('authorization', `Bearer ${token}`)
    request.upload.onprogress = (event) => event.lengthComputable && onProgress(event.loaded / event.total)
    request.onerror = () => reject(new Error('The upload was broken off.'))
    request.onload = () => {
      if (request.status < 300) resolve()
      else void failureOf(new Response(request.responseText, { status: request.status })).then(reject)
    }
    request.send(body)
  })
}

/** Saves what an address of the API returns on the reader's machine, as `title.ending`. */
export function saveFile(path: string, title: string, ending: string): Promise<void> {
  return saveFileAs(path, `${title.replaceAll(/[\\/:*?"<>|\s]+/g, '-').slice(0, 80)}.${ending}`)
}

/** The same under exactly this name. */
export async function saveFileAs(path: string, name: string): Promise<void> {
  const url = URL.createObjectURL(await readFile(path))
  const link = document.createElement('a')
  link.href = url
  link.download = name
  link.click()
  window.setTimeout(() => URL.revokeObjectURL(url), 10_000)
}
