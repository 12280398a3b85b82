/** As the image and npm's scripts start a gateway: the benchmark and the soak measure that. */
export const NODE_FLAGS = ['--max-semi-space-size=16'];
