// The environment variables that configure every peer.
const { PORT, BACKEND_URL, REDIS_URL, FOLDER, SECRET } = process.env;

export const port = Number(PORT);
export const backendUrl = BACKEND_URL;
export const redisUrl = REDIS_URL;
/** Where a peer may keep its records in a file. */
export const folder = FOLDER;
/** The secret key of the one merchant. */
export const secret = SECRET;
export const host = '127.0.0.1';
