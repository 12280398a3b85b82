# Build: every dependency, type-checked and compiled.
FROM node:24-bookworm-slim AS build
WORKDIR /app
COPY package.json package-lock.json .npmrc ./
RUN npm ci --no-audit --no-fund
COPY tsconfig.json tsconfig.build.json ./
COPY scripts ./scripts
COPY src ./src
# The image brings Node itself: the copy that is carried for other machines is left out.
RUN node scripts/build.ts \
  && npm prune --omit=dev --no-audit --no-fund \
  && rm -rf node_modules/node-linux-* node_modules/.bin/node

# Run: the compiled gateway and its runtime dependencies, as an ordinary user, on a file system that may be read-only.
FROM node:24-bookworm-slim
ENV NODE_ENV=production
WORKDIR /app
COPY --from=build --chown=root:root /app/node_modules ./node_modules
COPY --from=build --chown=root:root /app/dist ./dist
COPY --chown=root:root package.json ./
COPY --chown=root:root config ./config
# The only place that is written to, and only by the LMDB store: mount a volume here.
RUN mkdir /data && chown node:node /data && chmod 700 /data
VOLUME /data
USER node
EXPOSE 8080 9090
# Asks the admin port, which listens on this container's loopback unless configured otherwise.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
  CMD ["node", "-e", "fetch('http://127.0.0.1:9090/healthz').then((r) => process.exit(r.ok ? 0 : 1), () => process.exit(1))"]
# Requests leave little behind: with a larger nursery the process only takes more memory (docs/performance.md).
ENV NODE_OPTIONS=--max-semi-space-size=16
ENTRYPOINT ["node", "dist/main.js"]
CMD ["serve", "--config", "/etc/oncegate/gateway.yaml"]
