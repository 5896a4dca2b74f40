//! Nothing of the ABI is left out.
use std::fs;

#[test]
fn every_function_of_the_abi_is_reachable() {
    let top = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/abi/waveinfer-2.abi.txt");
    let source: String = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))
        .unwrap()
        .map(|file| fs::read_to_string(file.unwrap().path()).unwrap())
        .collect();
    let words: Vec<_> = source.split(|c: char| !(c.is_alphanumeric() || c == '_')).collect();
    let manifest = fs::read_to_string(top).unwrap();
    let named = manifest.lines().filter_map(|line| {
        let (kind, rest) = line.split_once(' ')?;
        let name = rest.split(' ').next()?.split('.').next_back()?;
        // Fields with nothing to say, and constants that are the absence of others.
        let needless = name.starts_with("reserved") || ["struct_size", "WI_LOG_NONE", "code"].contains(&name);
        (["symbol", "field", "value"].contains(&kind) && !needless).then_some(name)
    });
    let missing: Vec<_> = named.filter(|name| !words.contains(name)).collect();
    assert!(manifest.lines().count() > 300);
    assert!(missing.is_empty(), "{missing:?}");
}
