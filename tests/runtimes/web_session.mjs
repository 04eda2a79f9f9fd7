// Runs a model with onnxruntime-web's wasm backend: node web_session.mjs PACKAGE_FOLDER MODEL
//
// Each line of standard input is a JSON object of the model's inputs by name; the line that answers
// it on standard output is one of its outputs. A tensor is {type, dims, data}, its bytes in base64.
import { createInterface } from "node:readline";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { basename } from "node:path";

const [folder, model] = process.argv.slice(2);
const ort = createRequire(`${folder}/package.json`)("onnxruntime-web");
ort.env.wasm.numThreads = 1;

const TYPES = {
  float32: Float32Array,
  float16: globalThis.Float16Array ?? Uint16Array,
  int64: BigInt64Array,
};

const fromJson = ({ type, dims, data }) => {
  const bytes = new Uint8Array(Buffer.from(data, "base64"));
  return new ort.Tensor(type, new TYPES[type](bytes.buffer), dims);
};

const toJson = ({ type, dims, data }) => ({
  type,
  dims,
  data: Buffer.from(data.buffer, data.byteOffset, data.byteLength).toString("base64"),
});

const mapValues = (object, f) =>
  Object.fromEntries(Object.entries(object).map(([key, value]) => [key, f(value)]));

const weights = `${model}.data`;
const session = await ort.InferenceSession.create(readFileSync(model), {
  executionProviders: ["wasm"],
  externalData: [{ path: basename(weights), data: readFileSync(weights) }],
});

for await (const line of createInterface({ input: process.stdin })) {
  const outputs = await session.run(mapValues(JSON.parse(line), fromJson));
  console.log(JSON.stringify(mapValues(outputs, toJson)));
}
