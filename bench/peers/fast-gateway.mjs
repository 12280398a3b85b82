// fast-gateway.
// Follows fast-gateway's README, section "Usage". With an empty prefix its default path pattern, `/*`, takes
// every path. Its agent keeps connections to the backend alive by default (fast-proxy-lite's README,
// section "Options").
import gateway from 'fast-gateway';
import { backendUrl, host, port } from './lib/environment.mjs';

const server = gateway({ routes: [{ prefix: '', target: backendUrl }] });

await server.start(port, host);
