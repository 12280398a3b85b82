import type { IncomingMessage } from 'node:http';
import { isIP, type Socket } from 'node:net';
import type { TLSSocket } from 'node:tls';
import { compile } from 'proxy-addr';
import type { Client } from '../lib/context.ts';
import { valuesOf } from './fields.ts';

/** More proxies than a request passes. Further addresses in X-Forwarded-For are not read. */
const MAX_PROXIES = 20;

/** Tells whether this address, the `hop`th from the gateway, is that of a trusted proxy. As Express' `trust proxy fn`. */
export type Trust = (address: string, hop: number) => boolean;

/** @param trustedProxies see `listen.trustedProxies` */
export function trustOf(trustedProxies: readonly string[]): Trust | undefined {
  return trustedProxies.length === 0 ? undefined : compile([...trustedProxies]);
}

/**
 * Finds the client of a request. X-Forwarded-For is read from its end, and only a trusted proxy is believed about the address
 * before its own. Without trusted proxies the peer of the connection is the client.
 */
export function findClient({ socket, rawHeaders }: IncomingMessage, isTrusted: Trust | undefined): Client {
  const peer = peerOf(socket);
  if (!isTrusted?.(peer, 0)) return { address: peer, proxies: NONE };
  const client = { address: peer, proxies: [] as string[], isPeerTrusted: true };
  const claimed = valuesOf(rawHeaders, 'x-forwarded-for').join(',').split(',');
  while (client.proxies.length < MAX_PROXIES && isTrusted(client.address, client.proxies.length)) {
    const before = ipv4Of(claimed.pop()?.trim() ?? '');
    // Neither a name such as `unknown` nor an address with a port tells who the client is.
    if (isIP(before) === 0) break;
    client.proxies.unshift(client.address);
    client.address = before;
  }
  return client;
}

/** The client of a request to an Express application, by that application's own `trust proxy`. */
export function findClientInExpress(req: IncomingMessage): Client {
  const { app } = req as { app?: { get(setting: string): unknown } };
  return findClient(req, app?.get('trust proxy fn') as Trust | undefined);
}

/** Whether the connection of a request uses TLS. */
export const isEncrypted = ({ socket }: IncomingMessage): boolean =>
  (socket as Partial<TLSSocket>).encrypted === true;

const NONE: readonly string[] = [];

/** A connection that was closed before its address was read has none. */
const peerOf = ({ remoteAddress }: Socket): string => ipv4Of(remoteAddress ?? '');

/** A socket that accepts IPv4 and IPv6 shows an IPv4 address as ::ffff:192.0.2.1. */
const ipv4Of = (address: string): string =>
  address.startsWith('::ffff:') && address.includes('.') ? address.slice('::ffff:'.length) : address;
