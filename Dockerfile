# The packages of the image: pg for PostgreSQL, and no more, because the command is one bundle. With `--build-arg ONCEGATE_TRACING=1`,
# also OpenTelemetry for tracing.endpoint. Their versions are those of the lock file.
FROM node:24-bookworm-slim AS packages
WORKDIR /app
COPY package.json package-lock.json .npmrc ./
COPY scripts/image-packages.mjs ./scripts/
ARG ONCEGATE_TRACING
RUN node scripts/image-packages.mjs ${ONCEGATE_TRACING:+tracing} \
  && npm install --no-audit --no-fund && rm -rf node_modules/.bin node_modules/.package-lock.json

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
RUN node scripts/build.ts

# Run: the bundled gateway, as an ordinary user. The root file system may be read-only.
FROM node:24-bookworm-slim
ENV NODE_ENV=production
WORKDIR /app
COPY --from=packages --chown=root:root /app/node_modules ./node_modules
COPY --from=build --chown=root:root /app/dist ./dist
COPY --chown=root:root package.json ./
COPY --chown=root:root config ./config
# Only the SQLite store writes, and only here: mount a volume.
RUN mkdir /data && chown node:node /data && chmod 700 /data
VOLUME /data
USER node
EXPOSE 8080 8081
# It asks admin.host and admin.port of the configuration. Whoever starts the gateway with another file, overrides it.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s \
  CMD ["node", "dist/main.js", "health", "--config", "/etc/oncegate/gateway.yaml"]
# A larger semi-space makes the process larger and not faster (docs/performance.md). No signal opens the debugger.
ENV NODE_OPTIONS="--max-semi-space-size=16 --disable-sigusr1"
# A gateway that rests keeps its compiled code. NODE_OPTIONS does not take this flag.
ENTRYPOINT ["node", "--no-memory-reducer", "dist/main.js"]
CMD ["serve", "--config", "/etc/oncegate/gateway.yaml"]
