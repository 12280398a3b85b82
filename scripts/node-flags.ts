/**
 * How the image and the units start a gateway: semi-spaces of 16 MiB, and no debugger at SIGUSR1. These hold for every process of Node in
 * the container.
 */
export const NODE_OPTIONS = ['--max-semi-space-size=16', '--disable-sigusr1'];

/** All flags of a gateway's process. The last one keeps compiled code while the gateway rests, and is not allowed in NODE_OPTIONS. */
export const NODE_FLAGS = [...NODE_OPTIONS, '--no-memory-reducer'];
