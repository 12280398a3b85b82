# Build: every dependency, type-checked and compiled.
FROM node:24-bookworm-slim AS build
WORKDIR /app
COPY package.json package-lock.json .npmrc ./
RUN npm ci --no-audit --no-fund
COPY tsconfig.json tsconfig.build.json ./
COPY scripts ./scripts
COPY src ./src
COPY config ./config
# `docker build --build-arg ONCEGATE_COMMIT=$(git rev-parse HEAD)` names the commit in oncegate_build_info.
ARG ONCEGATE_COMMIT
# The image has its own Node, so the copy for other machines is removed.
RUN node scripts/build.ts \
  && npm prune --omit=dev --no-audit --no-fund \
  && rm -rf node_modules/node-linux-* node_modules/.bin/node

# Run: the compiled gateway and its runtime dependencies, as an ordinary user. The root file system may be read-only.
FROM node:24-bookworm-slim
ENV NODE_ENV=production
WORKDIR /app
COPY --from=build --chown=root:root /app/node_modules ./node_modules
COPY --from=build --chown=root:root /app/dist ./dist
COPY --chown=root:root package.json ./
COPY --chown=root:root config ./config
# Only the SQLite store writes, and only here: mount a volume.
RUN mkdir /data && chown node:node /data && chmod 700 /data
VOLUME /data
USER node
EXPOSE 8080 8081
# The admin port listens on this container's loopback by default.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
  CMD ["node", "-e", "fetch('http://127.0.0.1:8081/healthz').then((r) => process.exit(r.ok ? 0 : 1), () => process.exit(1))"]
# A larger semi-space makes the process larger and not faster (docs/performance.md). No signal opens the debugger.
ENV NODE_OPTIONS="--max-semi-space-size=16 --disable-sigusr1"
ENTRYPOINT ["node", "dist/main.js"]
CMD ["serve", "--config", "/etc/oncegate/gateway.yaml"]
