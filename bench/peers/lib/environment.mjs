// The environment variables that configure every peer.
const { PORT, BACKEND_URL, REDIS_URL } = process.env;

export const port = Number(PORT);
export const backendUrl = BACKEND_URL;
export const redisUrl = REDIS_URL;
export const host = '127.0.0.1';
