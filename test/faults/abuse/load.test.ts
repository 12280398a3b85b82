// These tests share a file so that they run one after the other: each measures a gateway under load.
import './in-flight-flood.ts';
import './wrong-keys.ts';
import './slow-connections.ts';
import './distinct-keys.ts';
