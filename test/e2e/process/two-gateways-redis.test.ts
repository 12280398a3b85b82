import { describeTwoGateways } from './two-gateways.ts';

describeTwoGateways('redis');
