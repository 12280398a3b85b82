// In one file, and so one after the other: each of them measures a gateway under load.
import './in-flight-flood.ts';
import './wrong-keys.ts';
import './slow-connections.ts';
import './distinct-keys.ts';
