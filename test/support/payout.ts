/** The body of a payout, as the payment API defines it. */
export const payoutBody = (amount = 10) => ({
  action: 'withdraw',
  amount,
  bank_code: '058',
  account_number: '0123456789',
});
