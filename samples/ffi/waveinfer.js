// libwaveinfer for Node, by koffi (npm install koffi): waveinfer.h itself is the declarations, so that nothing can
// drift; calls throw their error.
//   WAVEINFER_LIBRARY, WAVEINFER_HEADER   where they are; else the system's library, and the header of this checkout
'use strict';
const fs = require('fs');
const path = require('path');
const koffi = require('koffi');

const header = process.env.WAVEINFER_HEADER || path.join(__dirname, '..', '..', 'include', 'waveinfer.h');
const library = koffi.load(process.env.WAVEINFER_LIBRARY || 'libwaveinfer.so.2');

// What the C compiler would see: no comments, nothing for C++, no preprocessor; one declaration each.
function declarations() {
  const text = fs.readFileSync(header, 'utf8')
    .replace(/\/\*[^]*?\*\//g, ' ')
    .replace(/#ifdef __cplusplus[^]*?#endif/g, '')
    .replace(/^\s*#.*$/gm, '')
    .replace(/\s+/g, ' ');
  return text.match(/[^;{]+(\{[^}]*\}[^;]*)?;/g).map((one) => one.trim());
}

const values = {};  // WI_E_BUDGET and so on
const structs = {}; // by name
const lib = {};     // wi_session_fork and so on

// Text has a length and may be any bytes, which a Buffer is: koffi's own strings are for results alone.
const bytes = (type) => type.replace(/\bchar\b/, 'uint8_t');

function declareStruct(name, body) {
  const fields = {};
  for (const field of body.split(';').map((one) => one.trim()).filter(Boolean)) {
    const list = /^(.*?)\s*(\w+(?:\s*,\s*\w+)*)$/.exec(field);
    const array = /^(\w+) (\w+)\[(\d+)\]$/.exec(field);
    const callback = /^\w+ \(\*(\w+)\)/.exec(field);
    if (array) fields[array[2]] = koffi.array(array[1], Number(array[3]), 'String');
    else if (callback) fields[callback[1]] = 'void *';
    else for (const one of list[2].split(',')) fields[one.trim()] = bytes(list[1]);
  }
  structs[name] = koffi.struct(name, fields);
}

// What a call fills in is copied back: the error, and parameters that are called _out.
function declareFunction(prototype) {
  const [, result, name, list] = /^(.*?)(\w+)\((.*)\)$/.exec(prototype);
  const parameters = list === 'void' ? '' : list.split(',').map((one) => {
    const filled = /(_out| error)$/.test(one) && /\*/.test(one);
    return filled ? '_Inout_ ' + bytes(one) : / (path|key)$/.test(one) ? one : bytes(one);
  }).join(',').replace(/wi_session\* const\*/, 'wi_session **');
  lib[name] = library.func(`${result}${name}(${parameters})`);
}

for (const one of declarations()) {
  let match;
  if ((match = /^typedef struct (\w+) \w+;$/.exec(one))) koffi.opaque(match[1]);
  else if ((match = /^typedef (\w+) (\w+);$/.exec(one))) koffi.alias(match[2], match[1]);
  else if ((match = /^enum \w+ \{(.*)\};$/.exec(one)))
    for (const [, name, value] of match[1].matchAll(/(\w+) = (-?\d+)/g)) values[name] = Number(value);
  else if ((match = /^typedef struct (\w+) \{(.*)\} \w+;$/.exec(one))) declareStruct(match[1], match[2]);
  else if ((match = /^typedef (.*)\(\*(\w+)\)(\(.*\));$/.exec(one)))
    koffi.pointer(match[2], koffi.proto(`${match[1]}${match[2]}_function${match[3]}`));
  else if ((match = /^WI_API (.*);$/.exec(one))) declareFunction(match[1]);
  else throw new Error(`${header}: cannot read "${one}"`);
}
if (lib.wi_abi_version() !== 2) throw new Error('libwaveinfer is of another ABI version');

class WaveError extends Error {
  constructor(error) {
    super(error.message);
    this.code = error.code;
    this.status = lib.wi_status_name(error.code);
  }
}

// A struct that says its own size; what is not in fields is zero, the default. koffi wants every field.
function struct(kind, fields = {}) {
  return Object.assign(koffi.decode(Buffer.alloc(koffi.sizeof(structs[kind])), structs[kind]),
    { struct_size: koffi.sizeof(structs[kind]) }, fields);
}

// Calls a function whose last parameter is a wi_error, which is added.
function call(name, ...parameters) {
  const error = struct('wi_error');
  if (lib[name](...parameters, error) !== values.WI_OK) throw new WaveError(error);
}

// The same on a thread of its own: meanwhile JavaScript goes on. What is passed must stay as it is so long.
function callAsync(name, ...parameters) {
  const error = struct('wi_error');
  return new Promise((resolve, reject) => lib[name].async(...parameters, error, (failed, status) => {
    if (failed) reject(failed);
    else if (status !== values.WI_OK) reject(new WaveError(error));
    else resolve();
  }));
}

// One that makes a handle, its last parameter but one.
function make(name, ...parameters) {
  const out = [null];
  call(name, ...parameters, out);
  return out[0];
}

// The text that an event or another result points to, as it is.
const text = (pointer, length) => Buffer.from(koffi.decode(pointer, 'uint8_t', Number(length)));

module.exports = { lib, values, structs, struct, call, callAsync, make, text, koffi, WaveError };
