import { describeTwoGateways } from './two-gateways.ts';

describeTwoGateways('lmdb');
