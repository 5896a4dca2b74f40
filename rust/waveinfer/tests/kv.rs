//! The KV store alone.
mod support;
use support::*;
use waveinfer::*;

const SHAPE: KvShape = KvShape { layers: 2, query_heads: 4, kv_heads: 2, head_dim: 16 };
const WIDTH: usize = 2 * 16;

fn floats(random: &mut Random, count: usize) -> Vec<f32> {
    (0..count).map(|_| random.float()).collect()
}

/// softmax(q * k / sqrt(head_dim)) * v and the logarithm of its sum, of one row.
fn attention(query: &[f32], keys: &[f32], values: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let (mut out, mut lse) = (Vec::new(), Vec::new());
    for (head, query) in query.chunks(16).enumerate() {
        let of = |all: &[f32], token: usize| all[token * WIDTH + head / 2 * 16..][..16].to_vec();
        let dot = |key: Vec<f32>| query.iter().zip(key).map(|(&q, k)| f64::from(q * k)).sum::<f64>() / 4.0;
        let weights: Vec<f64> = (0..keys.len() / WIDTH).map(|token| dot(of(keys, token)).exp()).collect();
        let sum: f64 = weights.iter().sum();
        for d in 0..16 {
            let mixed: f64 = weights.iter().enumerate().map(|(t, w)| w * f64::from(of(values, t)[d])).sum();
            out.push((mixed / sum) as f32);
        }
        lse.push(sum.ln() as f32);
    }
    (out, lse)
}

fn assert_near(a: &[f32], b: &[f32], tolerance: f32) {
    assert_eq!(a.len(), b.len());
    let most = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(most <= tolerance, "off by {most}");
}

#[test]
fn what_was_appended_is_attended() {
    let mut random = Random::new("what_was_appended_is_attended");
    let options = KvOptions::new(SHAPE).kv_type(KvType::F32).policy(Policy::full());
    let mut kv = options.create(runtime()).unwrap();
    let (keys, values) = (floats(&mut random, 300 * WIDTH), floats(&mut random, 300 * WIDTH));
    for layer in 0..2 {
        kv.append(layer, &keys, &values).unwrap();
    }
    kv.seal().unwrap();
    let query = floats(&mut random, 64);
    let (mut out, mut lse) = ([0.0; 64], [0.0; 4]);
    kv.attend(1, &query, &mut out, Some(&mut lse)).unwrap();
    let (wanted, wanted_lse) = attention(&query, &keys, &values);
    assert_near(&out, &wanted, 1e-4); // sums of 300 f32 products
    assert_near(&lse, &wanted_lse, 1e-4);
    assert_eq!(kv.stats().unwrap().tokens, 300);
    assert_eq!(kv.shape(), SHAPE);
}

#[test]
fn a_store_forks_truncates_saves_and_loads() {
    let mut random = Random::new("a_store_forks_truncates_saves_and_loads");
    let folder = Folder::new("stores");
    let path = folder.file("store");
    let mut kv = Kv::new(runtime(), SHAPE).unwrap();
    let (keys, values) = (floats(&mut random, 2000 * WIDTH), floats(&mut random, 2000 * WIDTH));
    for layer in 0..2 {
        kv.append(layer, &keys, &values).unwrap();
    }
    kv.seal().unwrap();
    let query = floats(&mut random, 3 * 64);
    let attend = |kv: &mut Kv| {
        let mut out = vec![0.0; 3 * 64];
        kv.attend(0, &query, &mut out, None).unwrap();
        out
    };
    kv.save(&path).unwrap();
    let mut bytes = Vec::new();
    kv.save_to(&mut bytes).unwrap();
    assert_eq!(bytes.len() as u64, kv.saved_bytes().unwrap());
    let wanted = attend(&mut kv);
    let mut fork = kv.fork().unwrap();
    kv.truncate(100).unwrap();
    assert_eq!(kv.stats_reader().stats().unwrap().tokens, 100);
    assert_eq!(attend(&mut fork), wanted);
    let options = KvOptions::new(SHAPE);
    assert_eq!(attend(&mut options.load(runtime(), &path).unwrap()), wanted);
    let read = options.load_from(runtime(), bytes.as_slice(), bytes.len() as u64);
    assert_eq!(attend(&mut read.unwrap()), wanted);
    let other = KvOptions::new(KvShape { head_dim: 32, ..SHAPE });
    expect(ErrorKind::Mismatch, "", other.load(runtime(), &path));
    expect(ErrorKind::Format, "", Session::load(model(), &path));
}

#[test]
fn arrays_that_do_not_fit_the_shape_are_refused() {
    let mut kv = Kv::new(runtime(), SHAPE).unwrap();
    expect(ErrorKind::Argument, "keys has 31 floats", kv.append(0, &[0.0; 31], &[0.0; 31]));
    expect(ErrorKind::Argument, "values has 64 floats, not 32", kv.append(0, &[0.0; 32], &[0.0; 64]));
    kv.append(0, &[0.0; 32], &[0.0; 32]).unwrap();
    let mut out = [0.0; 64];
    expect(ErrorKind::Argument, "queries has 63", kv.attend(0, &[0.0; 63], &mut out[1..], None));
    expect(ErrorKind::Argument, "out has 63", kv.attend(0, &[0.0; 64], &mut out[1..], None));
    expect(ErrorKind::Argument, "lse has 3", kv.attend(0, &[0.0; 64], &mut out, Some(&mut [0.0; 3])));
    expect(ErrorKind::Argument, "layer", kv.append(2, &[0.0; 32], &[0.0; 32]));
    expect(ErrorKind::Argument, "layer", kv.append(u32::MAX, &[0.0; 32], &[0.0; 32]));
    expect(ErrorKind::State, "", kv.attend(1, &[0.0; 64], &mut out, None));
    expect(ErrorKind::State, "", kv.seal());
    let flat = KvShape { layers: 0, ..SHAPE };
    expect(ErrorKind::Argument, "layers: 0", Kv::new(runtime(), flat));
    let budget = KvOptions::new(SHAPE).kv_budget_bytes(1000).create(runtime());
    expect(ErrorKind::Budget, "", budget.unwrap().append(0, &[0.0; 64 * WIDTH], &[0.0; 64 * WIDTH]));
}
