/**
 * The flags with which the image and npm's scripts start a gateway, and the benchmark too: semi-spaces of 16 MiB,
 * and no debugger at SIGUSR1.
 */
export const NODE_FLAGS = ['--max-semi-space-size=16', '--disable-sigusr1'];
