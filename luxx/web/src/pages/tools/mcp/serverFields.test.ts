import { expect, test } from 'vitest'
import { KNOWN_SERVERS } from './catalogue'
import { nameFrom, pairsOf, transportFrom, WrongLine } from './serverFields'

test('the name of a server is proposed after its host', () => {
  const named = {
    'https://mcp.linear.app/mcp': 'linear',
    'https://docs.mcp.cloudflare.com/mcp': 'cloudflare',
    'https://mcp.tools.example.co.uk/v1': 'example',
    'http://localhost:9000/mcp': 'localhost',
    'http://127.0.0.1:9000/mcp': 'server',
    'http://[::1]:9000/mcp': 'server',
    'https://averyveryverylongnameofahost.org/mcp': 'averyveryverylongnam',
    'https://xn--bcher-kva.example/mcp': 'xn--bcher-kva',
    'not an address': '',
    '': '',
  }
  for (const [address, name] of Object.entries(named)) expect(nameFrom(address), address).toBe(name)
  expect(nameFrom('https://mcp.linear.app/mcp', ['linear', 'linear-2'])).toBe('linear-3')
})

test('the transport follows the address', () => {
  expect(transportFrom('https://mcp.example.org/sse')).toBe('sse')
  expect(transportFrom('wss://mcp.example.org/socket')).toBe('websocket')
  expect(transportFrom('https://mcp.example.org/mcp')).toBe('http')
})

test('lines are pairs, and a value may have the separator', () => {
  expect(pairsOf('A=1\n\n B = x=y \n', '=')).toEqual({ A: '1', B: 'x=y' })
  expect(pairsOf('Authorization: Bearer a:b', ':')).toEqual({ Authorization: 'Bearer a:b' })
  expect(() => pairsOf('no value', '=')).toThrow(WrongLine)
  expect(() => pairsOf('=1', '=')).toThrow('=1')
})

test('the names of well-known servers are valid and each is there once', () => {
  for (const { name, url } of KNOWN_SERVERS) {
    expect(name).toMatch(/^[a-z0-9][a-z0-9-]{0,19}$/)
    expect(new URL(url).protocol).toBe('https:')
  }
  expect(new Set(KNOWN_SERVERS.flatMap(({ name, url }) => [name, url])).size).toBe(2 * KNOWN_SERVERS.length)
})
