// Reads a long document once, then answers several questions about it at the same time, each from a fork.
//   node long_document.js MODEL DOCUMENT QUESTION...
// Ctrl-C ends reading and answering. Progress and statistics go to standard error.
'use strict';
const fs = require('fs');
const wi = require('./waveinfer.js');

const mostTokens = 128;

// A user's turn as the model's chat template has it, up to where the answer begins.
function userTurn(model, text) {
  const message = wi.struct('wi_chat_message',
    { role: Buffer.from('user\0'), content: text, content_length: text.length });
  const params = wi.struct('wi_chat_params', { flags: wi.values.WI_CHAT_ADD_GENERATION_PROMPT });
  const count = [0];
  wi.call('wi_model_chat_tokens', model, message, 1, params, null, 0, count);
  const tokens = new Int32Array(count[0]);
  wi.call('wi_model_chat_tokens', model, message, 1, params, tokens, tokens.length, count);
  return tokens;
}

function common(a, b) {
  let same = 0;
  while (same < a.length && same < b.length && a[same] === b[same]) ++same;
  return same;
}

// Beside JavaScript, so that Ctrl-C is heard.
async function read(session, tokens, interrupted) {
  const progress = wi.koffi.register((_, done, total) => {
    process.stderr.write(`\rreading: ${Math.round(100 * done / total).toString().padStart(3)} %`);
    return 0;
  }, 'wi_progress_callback');
  const params = wi.struct('wi_prefill_params', { progress });
  await wi.callAsync('wi_session_prefill', session, tokens, tokens.length, params, interrupted);
  wi.koffi.unregister(progress);
  process.stderr.write('\n');
}

async function printAnswer(task) {
  const ready = [0], count = [0];
  for (let kind = wi.values.WI_EVENT_TOKEN; kind === wi.values.WI_EVENT_TOKEN;) {
    await wi.callAsync('wi_task_wait', task, -1, ready);
    const events = Array.from({ length: 16 }, () => wi.struct('wi_event'));
    wi.call('wi_task_poll', task, events, events.length, count);
    for (const event of events.slice(0, count[0])) {
      process.stdout.write(wi.text(event.text, event.text_length));
      kind = event.kind;
    }
  }
  const info = wi.struct('wi_task_info');
  wi.call('wi_task_get_info', task, info);
  if (info.status !== wi.values.WI_OK) throw new wi.WaveError({ code: info.status, message: info.message });
}

async function main(path, documentPath, ...questions) {
  const interrupted = wi.make('wi_cancel_create'), tasks = [];
  process.once('SIGINT', () => { // a second one ends the program
    wi.lib.wi_cancel_trigger(interrupted);
    tasks.forEach(wi.lib.wi_task_cancel);
  });
  const runtime = wi.make('wi_runtime_create', null);
  const model = wi.make('wi_model_open', runtime, path, null, null);
  const document = wi.make('wi_session_create', model, null);

  // What all these conversations begin with is the document: it is read once.
  const text = Buffer.concat([fs.readFileSync(documentPath), Buffer.from('\n\n')]);
  const opening = userTurn(model, text);
  const asked = questions.map((question) => userTurn(model, Buffer.concat([text, Buffer.from(question)])));
  const shared = Math.min(...asked.map((turn) => common(opening, turn)));
  await read(document, opening.subarray(0, shared), interrupted);

  for (const turn of asked) {
    const fork = wi.make('wi_session_fork', document);
    const ask = wi.struct('wi_task_params',
      { tokens: turn.subarray(shared), token_count: turn.length - shared, max_tokens: mostTokens });
    tasks.push(wi.make('wi_task_submit', fork, ask));
    wi.lib.wi_session_release(fork); // the task keeps it
  }
  for (const [i, task] of tasks.entries()) {
    process.stdout.write(`${questions[i]}\n  `);
    await printAnswer(task);
    process.stdout.write('\n');
  }

  const stats = wi.struct('wi_session_stats');
  wi.call('wi_session_get_stats', document, stats);
  process.stderr.write(`${stats.tokens} tokens read in ${(stats.prefill_ns / 1e9).toFixed(1)} s, ` +
    `${stats.segments} segments, ${(stats.kv_bytes / 1e6).toFixed(1)} MB of KV cache, ` +
    `${(stats.index_bytes / 1e6).toFixed(1)} MB of it index\n`);
  tasks.splice(0).forEach(wi.lib.wi_task_release);
  wi.lib.wi_session_release(document);
  wi.lib.wi_model_release(model);
  wi.lib.wi_runtime_release(runtime);
  wi.lib.wi_cancel_release(interrupted);
}

if (process.argv.length < 5) {
  process.stderr.write('usage: node long_document.js MODEL DOCUMENT QUESTION...\n');
  process.exitCode = 1;
} else {
  main(...process.argv.slice(2)).catch((error) => {
    process.stderr.write(`\nlong_document: ${error.status ? error.status + ': ' : ''}${error.message}\n`);
    process.exit(1);
  });
}
