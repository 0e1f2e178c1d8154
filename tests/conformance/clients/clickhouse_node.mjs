// @clickhouse/client: questions to ClickHouse's interface, in its formats, packed and not.

import { ClickHouseLogLevel, createClient } from "@clickhouse/client";

const { CLICKHOUSE_URL: url, CLICKHOUSE_USER: username, CLICKHOUSE_KEY: password } = process.env;
const options = { url, username, password, database: "sluice", log: { level: ClickHouseLogLevel.OFF } };
const client = createClient(options);

async function connects() {
  return [(await client.ping()).success, (await client.ping({ select: true })).success];
}

async function asks() {
  const query =
    "SELECT model, toUInt32(sum(output_tokens)) AS tokens, toString(sum(cost)) AS cost, NULL AS nothing," +
    " toDate(min(accepted_at)) AS day FROM usage" +
    " WHERE tenant_id = {tenant:String} AND accepted_at < {now:DateTime64(3)} AND choice IN {choices:Array(UInt32)}" +
    " GROUP BY model";
  const query_params = { tenant: "acme", now: new Date(), choices: [0, 1] };
  const [row] = await (await client.query({ query, query_params, format: "JSONEachRow" })).json();
  return [row.model, row.tokens, row.cost, row.nothing, row.day];
}

async function formats() {
  const query = "SELECT 1 AS one, 'a,b' AS text";
  const json = await (await client.query({ query, format: "JSON" })).json();
  return [json.data, (await (await client.query({ query, format: "CSV" })).text()).trim()];
}

async function summed(asking) {
  const answer = await asking.query({ query: "SELECT number FROM numbers(100000)", format: "JSONEachRow" });
  let rows = 0;
  let sum = 0;
  for await (const several of answer.stream())
    for (const row of several) {
      rows += 1;
      sum += Number(row.json().number);
    }
  return [rows, sum];
}

const streams = () => summed(client);

async function packs() {
  const ways = [{ response: true }, { request: true }, { response: true, request: true }];
  return Promise.all(ways.map((compression) => summed(createClient({ ...options, compression }))));
}

async function fails() {
  const code = (asking, query) => asking.query({ query }).then(() => null, (error) => [Number(error.code), error.type]);
  return {
    table: await code(client, "SELECT * FROM nothing"),
    key: await code(createClient({ ...options, password: "wrong" }), "SELECT 1"),
  };
}

async function gives_up() {
  const query = "SELECT sum(number) FROM numbers(1000000000000)";
  const asked = client.query({ query, abort_signal: AbortSignal.timeout(300) });
  const gave_up = await asked.then(() => false, () => true);
  const [{ one }] = (await (await client.query({ query: "SELECT 1 AS one" })).json()).data;
  return [gave_up, one];
}

const abilities = [connects, asks, formats, streams, packs, fails, gives_up];
