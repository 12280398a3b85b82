/** The flags with which the image and npm's scripts start a gateway. The benchmark and the soak test use the same. */
export const NODE_FLAGS = ['--max-semi-space-size=16'];
