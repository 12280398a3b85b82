import { storeFolder } from '../support/sqlite-files.ts';
import { sqliteDamages } from './sqlite-damages.ts';
import { storeContract } from './store-contract.ts';

storeContract({
  name: 'sqlite',
  place: () => ({ kind: 'sqlite', path: storeFolder() }),
  damages: sqliteDamages,
});
