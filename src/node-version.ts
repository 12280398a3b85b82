/** Older versions drop header lines of a request, which allows request smuggling. */
const OLDEST_NODE = { major: 24, minor: 18 };

/**
 * Says which Node is needed and how to get it, to whoever runs an older one.
 *
 * @returns one sentence; undefined if this Node is new enough
 */
export function sentenceForOldNode(): string | undefined {
  const { versions, execPath, platform, arch } = process;
  const [major = 0, minor = 0] = versions.node.split('.').map(Number);
  if (major > OLDEST_NODE.major || (major === OLDEST_NODE.major && minor >= OLDEST_NODE.minor))
    return undefined;
  const needed = `Node ${OLDEST_NODE.major}.${OLDEST_NODE.minor} or newer is needed`;
  const isPackage = platform === 'linux' && (arch === 'x64' || arch === 'arm64');
  const how = isPackage
    ? `npm install node-linux-${arch}@${OLDEST_NODE.major} brings it into a project, where npx and npm run find it`
    : 'https://nodejs.org has it';
  return `oncegate: ${needed}, and ${execPath} is Node ${versions.node}: ${how}.`;
}
