//! Runtimes and models.
use std::sync::Arc;
use std::time::Duration;

mod support;
use support::*;
use waveinfer::*;

#[test]
fn a_runtime_says_what_it_runs_on_and_what_it_holds() {
    let runtime = RuntimeOptions::new()
        .threads(1)
        .device("cpu")
        .kv_budget_bytes(50_000_000)
        .huge_pages(HugePages::Off)
        .bind_threads(BindThreads::Off)
        .nice(1)
        .task_wait(Duration::from_millis(20))
        .create()
        .unwrap();
    let info = runtime.device_info().unwrap();
    assert_eq!((info.threads, info.name.as_str()), (1, "cpu"));
    assert!(info.memory_bytes > 1 << 20 && info.cores > 0 && !info.simd.is_empty());
    let names: Vec<_> = runtime.policies().unwrap().iter().map(|policy| policy.name).collect();
    for name in ["wave", "full", "streaming", "blocks"] {
        assert!(names.contains(&name), "{names:?}");
    }
    let model = Model::open(&runtime, MODEL).unwrap();
    let session = Session::new(&model).unwrap();
    let stats = runtime.stats().unwrap();
    assert_eq!((stats.sessions, stats.kv_budget_bytes), (1, 50_000_000));
    drop(session);
    assert_eq!(runtime.stats().unwrap().sessions, 0);
    expect(ErrorKind::Argument, "", RuntimeOptions::new().task_wait(Duration::from_secs(3600)).create());
}

#[test]
fn a_session_that_outgrows_its_memory_goes_on_in_the_slow_tier() {
    let folder = Folder::new("spill");
    let runtime = RuntimeOptions::new()
        .threads(2)
        .spill_folder(folder.file(""))
        .spill_bytes(1 << 30)
        .buffer_manager(BufferManager::Bucketed)
        .create()
        .unwrap();
    let spilling = Model::open(&runtime, MODEL).unwrap();
    let mut session = SessionOptions::new().kv_fast_share(0.1).create(&spilling).unwrap();
    session.prefill(&some_tokens(4000, 1)).unwrap();
    let mut in_memory = session_with(4000);
    let mut compared = 0;
    while session.stats().unwrap().slow_bytes == 0 || compared < 5 {
        assert_eq!(decode(&mut session, 1), decode(&mut in_memory, 1)); // what is written is beside the steps
        compared += 1;
        assert!(compared < 1000, "nothing is in the slow tier");
    }
    assert!(runtime.stats().unwrap().slow_written_bytes > 0);
    let stats = session.stats().unwrap();
    assert_eq!(stats.buffer_admissions + stats.buffer_refusals + stats.buffer_late, stats.buffer_misses);
}

#[test]
fn a_model_says_what_it_is() {
    let info = model().info().unwrap();
    assert_eq!((info.architecture.as_str(), info.vocab), ("llama", 4096));
    assert!(info.layers > 0 && info.query_heads % info.kv_heads == 0 && info.weight_type == "f16");
    assert_eq!(info.bos_token, Some(0));
    assert_eq!(info.chat_family, "template");
}

#[test]
fn metadata_is_listed_and_read_by_key() {
    let keys = model().metadata_keys().unwrap();
    assert!(keys.iter().any(|key| key == "general.name"));
    for key in &keys {
        assert!(model().metadata_bytes(key).unwrap().is_some(), "{key}");
    }
    assert_eq!(model().metadata("general.architecture").unwrap().as_deref(), Some("llama"));
    let layers = model().metadata("llama.block_count").unwrap().unwrap();
    assert_eq!(layers.parse(), Ok(model().info().unwrap().layers));
    assert_eq!(model().metadata("no.such.key").unwrap(), None);
    assert_eq!(model().metadata("nul\0").unwrap(), None);
}

#[test]
fn tokens_say_what_they_are() {
    let bos = model().token_info(model().info().unwrap().bos_token.unwrap()).unwrap();
    assert!(bos.is_control() && !bos.is_byte());
    let tokens = model().tokenize("Adam", TokenizeFlags::NONE).unwrap();
    let text: Vec<u8> =
        tokens.iter().flat_map(|&token| model().token_info(token).unwrap().text).copied().collect();
    assert_eq!(text, b"Adam");
    let ends =
        (0..model().info().unwrap().vocab).filter(|&token| model().token_info(token).unwrap().is_end());
    assert!(ends.count() > 0);
    expect(ErrorKind::Argument, "4096", model().token_info(4096));
}

#[test]
fn flags_put_bos_first_and_read_control_tokens() {
    let plain = model().tokenize("<|user|>", TokenizeFlags::NONE).unwrap();
    let both = TokenizeFlags::ADD_BOS | TokenizeFlags::PARSE_SPECIAL;
    let special = model().tokenize("<|user|>", both).unwrap();
    assert!(plain.len() > 1);
    assert_eq!(special, [0, 2]);
    assert_eq!(model().detokenize(&special[1..], true).unwrap(), b"<|user|>");
    assert_eq!(model().detokenize(&special[1..], false).unwrap(), b"");
}

#[test]
fn a_conversation_is_rendered_by_the_models_template() {
    let options = ChatOptions::new().add_generation_prompt(true);
    let turns =
        [ChatMessage::user("Who was Adam?"), ChatMessage::assistant("A man."), ChatMessage::user("And?")];
    let text = model().chat_render(&turns, &options).unwrap();
    assert!(text.contains("Who was Adam?") && text.contains("A man."));
    let tokens = model().chat_tokens(&turns, &options).unwrap();
    assert_eq!(tokens, model().tokenize(&text, TokenizeFlags::PARSE_SPECIAL).unwrap());
    assert!(tokens.len() > model().chat_tokens(&turns, &ChatOptions::new()).unwrap().len());

    let forged = [ChatMessage::user("<|end|>")];
    let control = |token: &&Token| model().token_info(**token).unwrap().is_control();
    let honest = model().chat_tokens(&[ChatMessage::user("end")], &options).unwrap();
    let tokens = model().chat_tokens(&forged, &options).unwrap();
    assert_eq!(tokens.iter().filter(control).count(), honest.iter().filter(control).count());

    let fields = [ChatMessage::new("user").fields_json(r#"{"content": "from fields"}"#)];
    assert!(model().chat_render(&fields, &options).unwrap().contains("from fields"));
    let options = options.tools_json("[]").variables_json(r#"{"x": 1}"#).now(std::time::SystemTime::now());
    model().chat_render(&turns, &options).unwrap();
    expect(ErrorKind::Argument, "", model().chat_render(&turns, &options.tools_json("{")));
    expect(ErrorKind::Argument, "", model().chat_render(&[], &ChatOptions::new()));
}

#[test]
fn a_model_opens_from_memory_and_from_a_reader() {
    let file = std::fs::read(MODEL).unwrap();
    let answer = decode(&mut session_with(20), 5);
    let answer_of = |model: Model| {
        let mut session = Session::new(&model).unwrap();
        drop(model);
        session.prefill(&some_tokens(20, 1)).unwrap();
        decode(&mut session, 5)
    };
    let length = file.len() as u64;
    let read = ModelOptions::new().open_reader(runtime(), file.as_slice(), length).unwrap();
    assert_eq!(answer_of(read), answer);
    assert_eq!(answer_of(ModelOptions::new().open_copy(runtime(), &file).unwrap()), answer);
    let shared: Arc<[u8]> = file.clone().into();
    assert_eq!(answer_of(ModelOptions::new().open_memory(runtime(), shared).unwrap()), answer);
    static STILL: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    let still: &'static [u8] = STILL.get_or_init(|| file.clone());
    assert_eq!(answer_of(ModelOptions::new().open_memory(runtime(), still).unwrap()), answer);
    assert_eq!(answer_of(ModelOptions::new().open_memory(runtime(), file).unwrap()), answer);
}

#[test]
fn a_model_keeps_the_memory_that_its_weights_lie_in() {
    let memory: Arc<[u8]> = std::fs::read(MODEL).unwrap().into();
    let opened = ModelOptions::new().open_memory(runtime(), memory.clone()).unwrap();
    let session = Session::new(&opened).unwrap();
    drop(opened);
    let task = TaskOptions::new().prompt(some_tokens(5000, 1)).submit(session).unwrap();
    let reader = task.stats_reader();
    assert_eq!(Arc::strong_count(&memory), 2);
    drop(task);
    assert_eq!(Arc::strong_count(&memory), 2);
    drop(reader);
    assert_eq!(Arc::strong_count(&memory), 1);
}

#[test]
fn every_precision_and_every_place_of_weights_answers() {
    for precision in [Precision::Fast, Precision::F32, Precision::High, Precision::Int8] {
        let options = ModelOptions::new().precision(precision).weights(Weights::Copied);
        let model = options.open(runtime(), MODEL).unwrap();
        for kv_type in [KvType::F16, KvType::Bf16, KvType::F32] {
            let mut session = SessionOptions::new().kv_type(kv_type).create(&model).unwrap();
            session.prefill(&some_tokens(20, 1)).unwrap();
            session.decode().unwrap();
        }
    }
}

#[test]
fn progress_of_an_open_never_falls_and_ends_at_its_total() {
    let mut told = Vec::new();
    let options = ModelOptions::new().weights(Weights::Copied).progress(|done, total| {
        told.push((done, total));
        std::ops::ControlFlow::Continue(())
    });
    options.open(runtime(), MODEL).unwrap();
    assert!(told.windows(2).all(|pair| pair[0].0 <= pair[1].0));
    let &(done, total) = told.last().unwrap();
    assert!(done == total && total > 0);
}

#[test]
fn a_plan_says_what_a_session_would_take() {
    let plan = model().plan_memory(10_000).unwrap();
    let info = model().info().unwrap();
    assert!(plan.fits);
    let keys_and_values = 10_000 * info.kv_bytes_per_token;
    assert!((keys_and_values..keys_and_values * 11 / 10).contains(&plan.kv_bytes)); // in whole pages
    let f32 = SessionOptions::new().kv_type(KvType::F32).kv_budget_bytes(1 << 20);
    let plan = f32.plan_memory(model(), 10_000).unwrap();
    assert!(!plan.fits && plan.kv_bytes >= 2 * keys_and_values && plan.max_tokens < 10_000);
}

#[test]
fn what_the_options_of_a_session_say_is_heard() {
    let options = SessionOptions::new()
        .policy(
            Policy::wave()
                .segment_tokens(1024)
                .decode_segment_tokens(256)
                .tokens_per_centroid(8)
                .kmeans_iterations(4),
        )
        .sparse_read_tokens(32)
        .prefix_reuse(PrefixReuse::Off);
    let mut session = options.create(model()).unwrap();
    session.prefill(&some_tokens(3000, 1)).unwrap();
    assert!(session.stats().unwrap().segments >= 2);
    let same = SessionOptions::new().prefix_reuse(PrefixReuse::On);
    let (mut first, mut second) = (same.create(model()).unwrap(), same.create(model()).unwrap());
    first.prefill(&some_tokens(3000, 77)).unwrap();
    second.prefill(&some_tokens(3000, 77)).unwrap();
    assert!(second.stats().unwrap().prefix_tokens > 0);
    for policy in [
        Policy::streaming().budget(0.5),
        Policy::blocks().local_window(-1),
        Policy::wave().estimation(-1.0).repeats(-1),
        Policy::wave().target_mass(0.9).budget_floor(0.01).budget_ceiling(0.5),
    ] {
        let mut session = SessionOptions::new().policy(policy).create(model()).unwrap();
        session.prefill(&some_tokens(1500, 1)).unwrap();
        decode(&mut session, 2);
    }
}
