//! What went wrong, as a Rust program sees it.
use std::error::Error as _;
use std::io;

mod support;
use support::*;
use waveinfer::*;

#[test]
fn a_missing_file_is_io_with_its_errno() {
    let error = expect(ErrorKind::Io, "missing.gguf", Model::open(runtime(), "missing.gguf"));
    assert_eq!(error.native_code(), Some(2));
    assert_eq!(error.kind().to_string(), "IO");
    assert_eq!(error.to_string(), error.message());
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::NotFound);
}

#[test]
fn a_broken_file_is_a_format_error_that_names_what_and_where() {
    let broken = ModelOptions::new().open_memory(runtime(), vec![0; 64]);
    let error = expect(ErrorKind::Format, "", broken);
    assert_eq!(error.native_code(), None);
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::InvalidData);
}

#[test]
fn an_argument_out_of_range_is_named_with_its_value() {
    expect(ErrorKind::Argument, "4096", session_with(1).prefill(&[4096]));
    expect(ErrorKind::Argument, "2000", RuntimeOptions::new().threads(2000).create());
    expect(ErrorKind::Argument, "2147483647", RuntimeOptions::new().threads(u32::MAX).create());
    let policy = Policy::wave().segment_tokens(65);
    expect(ErrorKind::Argument, "65", SessionOptions::new().policy(policy).create(model()));
}

#[test]
fn names_and_paths_with_nul_are_argument_errors() {
    expect(ErrorKind::Argument, "path has a NUL byte at 1", Model::open(runtime(), "a\0b"));
    expect(ErrorKind::Argument, "device has a NUL", RuntimeOptions::new().device("c\0pu").create());
    let policy = Policy::named("wa\0ve");
    expect(ErrorKind::Argument, "policy has a NUL", SessionOptions::new().policy(policy).create(model()));
    let asked = [ChatMessage::new("us\0er")];
    expect(ErrorKind::Argument, "role has a NUL", model().chat_tokens(&asked, &ChatOptions::new()));
}

#[test]
fn what_this_build_cannot_do_is_unsupported_by_name() {
    expect(ErrorKind::Unsupported, "abacus", RuntimeOptions::new().device("abacus").create());
    let policy = Policy::named("clairvoyance");
    expect(ErrorKind::Unsupported, "clairvoyance", SessionOptions::new().policy(policy).create(model()));
}

#[test]
fn decode_of_an_empty_session_is_a_state_error() {
    expect(ErrorKind::State, "", Session::new(model()).unwrap().decode().map(|event| event.to_owned()));
}

#[test]
fn a_spent_budget_leaves_the_session_as_it_was() {
    let runtime = RuntimeOptions::new().threads(2).kv_budget_bytes(1_000_000).create().unwrap();
    let model = Model::open(&runtime, MODEL).unwrap();
    let mut session = Session::new(&model).unwrap();
    session.prefill(&some_tokens(50, 1)).unwrap();
    expect(ErrorKind::Budget, "", session.prefill(&some_tokens(20_000, 1)));
    assert_eq!(session.token_count().unwrap(), 50);
    session.prefill(&some_tokens(50, 2)).unwrap();
}

#[test]
fn an_error_is_one_for_boxes_and_question_marks() {
    fn open() -> std::result::Result<Model, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Model::open(runtime(), "missing.gguf")?)
    }
    let error = open().unwrap_err();
    assert_eq!(error.downcast_ref::<Error>().unwrap().kind(), ErrorKind::Io);
}

#[test]
fn a_readers_own_error_is_the_source() {
    struct Torn;
    impl io::Read for Torn {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::new(io::ErrorKind::ConnectionReset, "the cable is torn"))
        }
    }
    let error = ModelOptions::new().open_reader(runtime(), Torn, 1000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert_eq!(error.source().unwrap().to_string(), "the cable is torn");
}

#[test]
fn every_kind_is_the_status_of_its_name() {
    let kinds = [
        (ErrorKind::Argument, "ARGUMENT"),
        (ErrorKind::Format, "FORMAT"),
        (ErrorKind::Unsupported, "UNSUPPORTED"),
        (ErrorKind::Io, "IO"),
        (ErrorKind::Memory, "MEMORY"),
        (ErrorKind::Budget, "BUDGET"),
        (ErrorKind::Cancelled, "CANCELLED"),
        (ErrorKind::Busy, "BUSY"),
        (ErrorKind::State, "STATE"),
        (ErrorKind::Mismatch, "MISMATCH"),
        (ErrorKind::Device, "DEVICE"),
        (ErrorKind::DeviceLost, "DEVICE_LOST"),
        (ErrorKind::Internal, "INTERNAL"),
        (ErrorKind::Unknown(99), "UNKNOWN"),
    ];
    for (status, (kind, name)) in (1..).zip(kinds) {
        assert_eq!(kind.name(), name);
        assert_eq!(kind.status(), if name == "UNKNOWN" { 99 } else { status });
    }
}

#[test]
fn the_versions_are_the_headers() {
    assert_eq!(version(), env!("CARGO_PKG_VERSION"));
    assert_eq!(abi_version(), 2);
}
