import { MAX_AMOUNT, toMinor } from './orders.ts';

/** A merchant of the sandbox. Its secret keys are public samples, which no other system accepts. */
export interface SandboxMerchant {
  readonly code: string;
  readonly businessName: string;
  readonly currency: string;
  readonly secrets: readonly string[];
  /** Major units. Credited once, when a new ledger file is created. */
  readonly openingBalance: number;
}

export const SANDBOX_MERCHANTS: readonly SandboxMerchant[] = [
  {
    code: 'M-ALPHA',
    businessName: 'Alpha Trading Limited',
    currency: 'NGN',
    // Two secret keys, as during a key rotation.
    secrets: ['sk_sandbox_alpha', 'sk_sandbox_alpha_2'],
    openingBalance: 1_000_000,
  },
  {
    code: 'M-BRAVO',
    businessName: 'Bravo Foods Limited',
    currency: 'NGN',
    secrets: ['sk_sandbox_bravo'],
    openingBalance: 1_000_000,
  },
  {
    code: 'M-CHARLIE',
    businessName: 'Charlie Digital LLC',
    currency: 'USD',
    secrets: ['sk_sandbox_charlie'],
    openingBalance: 1_000_000,
  },
];

/** Opening balances in major units by merchant code. A merchant that is left out keeps its default. */
export type OpeningBalances = Readonly<Record<string, number>>;

const CODE_BY_SECRET = new Map(
  SANDBOX_MERCHANTS.flatMap((merchant) => merchant.secrets.map((secret) => [secret, merchant.code] as const)),
);

/** The merchant code of the secret key in an Authorization header. Undefined if the key is unknown. */
export function merchantOf(authorization: string | undefined): string | undefined {
  const secret = /^Bearer ([^\s,]+)$/i.exec(authorization ?? '')?.[1];
  return secret === undefined ? undefined : CODE_BY_SECRET.get(secret);
}

export function withBalances(balances: OpeningBalances): SandboxMerchant[] {
  for (const [code, amount] of Object.entries(balances)) checkBalance(code, amount);
  return SANDBOX_MERCHANTS.map((merchant) => ({
    ...merchant,
    openingBalance: balances[merchant.code] ?? merchant.openingBalance,
  }));
}

function checkBalance(code: string, amount: number): void {
  if (!SANDBOX_MERCHANTS.some((merchant) => merchant.code === code)) {
    throw new Error(`sandbox: balances names the unknown merchant ${JSON.stringify(code)}`);
  }
  if (amount !== 0 && toMinor(amount) === undefined) {
    throw new Error(
      `sandbox: the balance of ${code} must be 0 to ${MAX_AMOUNT} with at most two decimals, not ${amount}`,
    );
  }
}
