/** ioredis' own function, which has no types: the slot of a key in a Redis Cluster. */
declare module 'cluster-key-slot' {
  export default function slotOf(key: string): number;
}
