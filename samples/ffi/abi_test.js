// What koffi makes of waveinfer.h, held against the manifest of the ABI: node abi_test.js MANIFEST
'use strict';
const assert = require('assert');
const fs = require('fs');
const wi = require('./waveinfer.js');

let lines = 0;
for (const line of fs.readFileSync(process.argv[2], 'utf8').split('\n')) {
  const [kind, name, ...rest] = line.split(' ');
  const [struct, field] = (name || '').split('.');
  if (kind === 'struct') assert.equal(wi.koffi.sizeof(wi.structs[name]), Number(rest[1]), line);
  else if (kind === 'field') {
    const { offset, type } = wi.koffi.introspect(wi.structs[struct]).members[field];
    assert.deepEqual([offset, wi.koffi.sizeof(type)], [Number(rest[1]), Number(rest[3])], line);
  }
  else if (kind === 'symbol') assert.equal(typeof wi.lib[name], 'function', line);
  else if (name === 'WI_ABI_VERSION') assert.equal(wi.lib.wi_abi_version(), Number(rest[0]), line);
  else if (kind === 'value') assert.equal(wi.values[name], Number(rest[0]), line);
  else continue;
  ++lines;
}
assert(lines > 300, `the manifest has only ${lines} lines`);
