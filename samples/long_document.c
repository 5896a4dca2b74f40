/* Reads a long document once, then answers several questions about it at the same time, each from a fork.
 *   sample_long_document MODEL DOCUMENT QUESTION...
 * Ctrl-C ends reading and answering. Progress and statistics go to standard error. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <waveinfer.h>

enum { kMostTokens = 128 };

typedef struct Tokens {
  int32_t* ids;
  uint64_t count;
} Tokens;

static wi_error error = {.struct_size = sizeof error};
static wi_cancel* interrupted;        /* ends calls */
static volatile sig_atomic_t stopped; /* asks for the end of tasks, which a signal handler cannot cancel */

static void check_with(wi_status status, const char* message) {
  if (status == WI_OK) return;
  fprintf(stderr, "\nlong_document: %s: %s\n", wi_status_name(status), message);
  exit(1);
}

static void check(wi_status status) { check_with(status, error.message); }

static void interrupt(int signal_number) {
  (void)signal_number;
  wi_cancel_trigger(interrupted);  // NOLINT(bugprone-signal-handler): made for it
  stopped = 1;
}

static int32_t show_progress(void* user, uint64_t done, uint64_t total) {
  (void)user;
  fprintf(stderr, "\rreading: %3.0f %%", 100.0 * (double)done / (double)total);
  return 0;
}

/* A whole file and room for `more` bytes behind it. */
static char* read_file(const char* path, size_t more, size_t* length) {
  FILE* file = fopen(path, "rb");
  if (!file || fseek(file, 0, SEEK_END)) return perror(path), exit(1), NULL;
  *length = (size_t)ftell(file);
  char* text = malloc(*length + more);
  rewind(file);
  if (!text || fread(text, 1, *length, file) != *length) return perror(path), exit(1), NULL;
  fclose(file);
  return text;
}

/* A user's turn as the model's chat template has it, up to where the answer begins. */
static Tokens user_turn(wi_model* model, const char* text, size_t length) {
  const wi_chat_message message = {
      .struct_size = sizeof message, .role = "user", .content = text, .content_length = length};
  const wi_chat_params params = {.struct_size = sizeof params, .flags = WI_CHAT_ADD_GENERATION_PROMPT};
  Tokens tokens;
  check(wi_model_chat_tokens(model, &message, 1, &params, NULL, 0, &tokens.count, &error));
  if (!(tokens.ids = malloc(tokens.count * sizeof *tokens.ids))) exit(1);
  check(wi_model_chat_tokens(model, &message, 1, &params, tokens.ids, tokens.count, &tokens.count, &error));
  return tokens;
}

static void print_answer(wi_task* task) {
  wi_event events[16] = {{.struct_size = sizeof *events}};
  for (int i = 1; i < 16; i++) events[i] = events[0];
  for (int32_t kind = WI_EVENT_TOKEN; kind == WI_EVENT_TOKEN;) {
    int32_t ready;
    uint64_t count;
    check(wi_task_wait(task, 50000000, &ready, &error)); /* ns, between looks at Ctrl-C */
    if (stopped) wi_task_cancel(task);
    check(wi_task_poll(task, events, 16, &count, &error));
    for (uint64_t i = 0; i < count; i++) {
      fwrite(events[i].text, 1, events[i].text_length, stdout);
      kind = events[i].kind;
    }
    fflush(stdout);
  }
  wi_task_info info = {.struct_size = sizeof info};
  check(wi_task_get_info(task, &info, &error));
  check_with(info.status, info.message); /* why it was cancelled or failed, if it was */
}

int main(int argc, char** argv) {
  const int questions = argc - 3;
  if (argc == 2 && !strcmp(argv[1], "--version")) return printf("sample_long_document %s\n", wi_version()), 0;
  const int help = argc == 2 && (!strcmp(argv[1], "-h") || !strcmp(argv[1], "--help"));
  if (help || questions < 1)
    return fputs(
               "usage: sample_long_document MODEL DOCUMENT QUESTION...\n"
               "Example: sample_long_document m.gguf book.txt 'Who wrote the letter?'\n",
               help ? stdout : stderr),
           !help;
  wi_runtime* runtime;
  wi_model* model;
  wi_session* document;
  check(wi_cancel_create(&interrupted, &error));
  signal(SIGINT, interrupt);
  check(wi_runtime_create(NULL, &runtime, &error));
  check(wi_model_open(runtime, argv[1], NULL, interrupted, &model, &error));
  check(wi_session_create(model, NULL, &document, &error));

  /* What all these conversations begin with is the document: it is read once. */
  size_t length, longest = 0;
  for (int i = 0; i < questions; i++)
    if (strlen(argv[3 + i]) > longest) longest = strlen(argv[3 + i]);
  char* text = read_file(argv[2], longest + 3, &length);
  strcpy(text + length, "\n\n");
  const Tokens opening = user_turn(model, text, length + 2);
  Tokens* asked = malloc((size_t)questions * sizeof *asked);
  wi_task** tasks = malloc((size_t)questions * sizeof *tasks);  // NOLINT(bugprone-sizeof-expression): handles
  if (!asked || !tasks) exit(1);
  uint64_t shared = opening.count;
  for (int i = 0; i < questions; i++) {
    strcpy(text + length + 2, argv[3 + i]);
    asked[i] = user_turn(model, text, strlen(argv[3 + i]) + length + 2);
    uint64_t same = 0;
    while (same < shared && same < asked[i].count && asked[i].ids[same] == opening.ids[same]) same++;
    shared = same;
  }
  const wi_prefill_params reading = {.struct_size = sizeof reading, .progress = show_progress};
  check(wi_session_prefill(document, opening.ids, shared, &reading, interrupted, &error));
  fputc('\n', stderr);

  for (int i = 0; i < questions; i++) {
    wi_session* fork;
    check(wi_session_fork(document, &fork, &error));
    const wi_task_params ask = {.struct_size = sizeof ask,
                                .tokens = asked[i].ids + shared,
                                .token_count = asked[i].count - shared,
                                .max_tokens = kMostTokens};
    check(wi_task_submit(fork, &ask, &tasks[i], &error));
    wi_session_release(fork); /* the task keeps it */
  }
  for (int i = 0; i < questions; i++) {
    printf("%s\n  ", argv[3 + i]);
    print_answer(tasks[i]);
    putchar('\n');
    wi_task_release(tasks[i]);
    free(asked[i].ids);
  }

  wi_session_stats stats = {.struct_size = sizeof stats};
  check(wi_session_get_stats(document, &stats, &error));
  fprintf(stderr, "%llu tokens read in %.1f s, %d segments, %.1f MB of KV cache, %.1f MB of it index\n",
          (unsigned long long)stats.tokens, (double)stats.prefill_ns / 1e9, (int)stats.segments,
          (double)stats.kv_bytes / 1e6, (double)stats.index_bytes / 1e6);
  free(tasks);
  free(asked);
  free(opening.ids);
  free(text);
  wi_session_release(document);
  wi_model_release(model);
  wi_runtime_release(runtime);
  signal(SIGINT, SIG_DFL); /* what the handler would trigger is no more */
  wi_cancel_release(interrupted);
  if (!ferror(stdout) && !fclose(stdout)) return 0;
  fputs("long_document: cannot write to standard output\n", stderr);
  return 1;
}
