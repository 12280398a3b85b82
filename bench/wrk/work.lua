-- The requests that wrk sends. Environment: WORK is balance, first, replay, mixed, unkeyed, passthrough or upload; every new
-- idempotency key of this run starts with KEYS. Prints one line of JSON when it is done: what was sent and how it was answered.
local work = os.getenv('WORK')
local keys = os.getenv('KEYS')
local authorization = 'Bearer ' .. os.getenv('SECRET')
local body =
  '{"action":"withdraw","amount":1500.25,"bank_code":"058","account_number":"0123456789"}    '

local get = { ['Authorization'] = authorization }
local post = { ['Authorization'] = authorization, ['Content-Type'] = 'application/json' }
local count = 0

local function balance()
  return wrk.format('GET', '/v2/get_balance', get)
end

local function passthrough()
  return wrk.format('GET', '/v2/others', get)
end

-- One MiB to a path that no operation declares, without a key.
local function upload()
  return wrk.format('POST', '/v2/files', { ['Authorization'] = authorization }, string.rep('x', 1048576))
end

local function withdraw(key)
  post['x-service-idempotency'] = key
  return wrk.format('POST', '/v1/index.php', post, body)
end

local function first()
  count = count + 1
  return withdraw(keys .. '-' .. count)
end

local ready

function request()
  if work == 'balance' then
    ready = ready or balance()
    return ready
  elseif work == 'passthrough' then
    ready = ready or passthrough()
    return ready
  elseif work == 'upload' then
    ready = ready or upload()
    return ready
  elseif work == 'first' then
    return first()
  elseif work == 'replay' then
    ready = ready or withdraw(keys)
    return ready
  elseif work == 'unkeyed' then
    ready = ready or withdraw(nil)
    return ready
  end
  -- mixed: 90 balances, 9 first withdraws, 1 replay of a key that all threads share
  count = count + 1
  local place = count % 100
  if place == 0 then
    return withdraw(keys)
  elseif place % 11 == 0 then
    return withdraw(keys .. '-' .. count)
  end
  ready = ready or balance()
  return ready
end

function done(summary, latency)
  local errors = summary.errors
  io.write(
    string.format(
      '{"requests":%d,"microseconds":%d,"badStatus":%d,"broken":%d,"p50Us":%d,"p99Us":%d}\n',
      summary.requests,
      summary.duration,
      errors.status,
      errors.connect + errors.read + errors.write + errors.timeout,
      latency:percentile(50),
      latency:percentile(99)
    )
  )
end
