//! Where the agent spends its processor time, on request: the kernel samples the agent's threads by their clock, and nothing of the agent runs for it.
//!
//! No signal handler and no unwinding inside the process (what profiling crates do): a sample is an entry that the kernel writes into a ring, so taps are not
//! disturbed, and while no profile is asked for there is nothing at all. A sample is the instruction, not the way to it: the program is built
//! without frame pointers. The form is pprof's `profile.proto`, which `go tool pprof` and Grafana's Pyroscope read.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use object::{Object as _, ObjectSegment as _, ObjectSymbol as _};
use prost::Message as _;

pub mod perf;
mod proto;

use perf::{HZ, Sample};

/// Why there is no profile.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The kernel does not allow it.
    #[error("perf_event_open: {0}: it needs CAP_PERFMON, or kernel.perf_event_paranoid at 2 or less")]
    Refused(std::io::Error),
    /// Packing failed.
    #[error("cannot pack the profile: {0}")]
    Packing(std::io::Error),
}

/// Samples every thread for this long. The result is a gzipped `profile.proto`.
///
/// # Errors
/// When the kernel does not allow it.
pub async fn take(length: Duration) -> Result<Vec<u8>, ProfileError> {
    let mut recording = perf::Recording::start().map_err(ProfileError::Refused)?;
    let turns = (length.as_millis() / PAUSE.as_millis()).max(1);
    for _ in 0..turns {
        tokio::time::sleep(PAUSE).await;
        recording.drain();
    }
    let (samples, lost) = recording.finish();
    if lost > 0 {
        tracing::warn!(lost, "samples of a profile found no room");
    }
    // Reading symbols takes tens of milliseconds.
    let made = tokio::task::spawn_blocking(move || pack(&samples, length)).await;
    made.unwrap_or_else(|e| Err(std::io::Error::other(e))).map_err(ProfileError::Packing)
}

/// Between two looks at the rings.
const PAUSE: Duration = Duration::from_millis(100);

fn pack(samples: &BTreeMap<Sample, u64>, length: Duration) -> std::io::Result<Vec<u8>> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let profile = build(samples, length, &mappings(&maps));
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(&profile.encode_to_vec())?;
    encoder.finish()
}

/// A part of a file that is mapped and can be run.
struct Mapping {
    from: u64,
    to: u64,
    offset: u64,
    file: String,
    /// Functions by their place in memory.
    symbols: BTreeMap<u64, (u64, String)>,
}

impl Mapping {
    fn function(&self, ip: u64) -> Option<&str> {
        let (start, (size, name)) = self.symbols.range(..=ip).next_back()?;
        (*size == 0 || ip - start < *size).then_some(name.as_str())
    }
}

/// What is mapped, from proc(5)'s `maps`.
fn mappings(maps: &str) -> Vec<Mapping> {
    maps.lines().filter_map(mapping).collect()
}

fn mapping(line: &str) -> Option<Mapping> {
    let mut fields = line.split_ascii_whitespace();
    let (from, to) = fields.next()?.split_once('-')?;
    let (from, to) = (u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?);
    if fields.next()?.as_bytes().get(2) != Some(&b'x') {
        return None;
    }
    let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
    let file = fields.nth(2).unwrap_or("[anonymous]").to_owned();
    let symbols = symbols(Path::new(&file), from, offset).unwrap_or_default();
    Some(Mapping { from, to, offset, file, symbols })
}

/// The functions of a file, where it is mapped from `offset` on at `from`.
fn symbols(path: &Path, from: u64, offset: u64) -> Option<BTreeMap<u64, (u64, String)>> {
    let bytes = std::fs::read(path).ok()?;
    let elf = object::File::parse(bytes.as_slice()).ok()?;
    let segment = elf.segments().find(|s| {
        let (start, size) = s.file_range();
        (start..start + size).contains(&offset)
    })?;
    let bias = from.wrapping_sub(offset).wrapping_add(segment.file_range().0).wrapping_sub(segment.address());
    let functions = elf.symbols().chain(elf.dynamic_symbols()).filter(|s| s.kind() == object::SymbolKind::Text && s.address() != 0);
    Some(functions.filter_map(|s| Some((s.address().wrapping_add(bias), (s.size(), s.name().ok()?.to_owned())))).collect())
}

fn build(samples: &BTreeMap<Sample, u64>, length: Duration, mappings: &[Mapping]) -> proto::Profile {
    let mut strings = Strings::default();
    strings.id("");
    let period = 1_000_000_000 / i64::from(HZ);
    let value = |strings: &mut Strings, kind, unit| proto::ValueType { r#type: strings.id(kind), unit: strings.id(unit) };
    let sample_type = vec![value(&mut strings, "samples", "count"), value(&mut strings, "cpu", "nanoseconds")];
    let mut profile = proto::Profile {
        sample_type,
        period_type: Some(value(&mut strings, "cpu", "nanoseconds")),
        period,
        duration_nanos: i64::try_from(length.as_nanos()).unwrap_or(i64::MAX),
        ..proto::Profile::default()
    };
    let mut ids = 0;
    let mut next = || {
        ids += 1;
        ids
    };
    for (n, m) in mappings.iter().enumerate() {
        profile.mapping.push(proto::Mapping {
            id: n as u64 + 1,
            memory_start: m.from,
            memory_limit: m.to,
            file_offset: m.offset,
            filename: strings.id(&m.file),
            has_functions: !m.symbols.is_empty(),
        });
    }
    let (mut functions, mut locations) = (BTreeMap::new(), BTreeMap::new());
    for (sample, count) in samples {
        let place = mappings.iter().position(|m| (m.from..m.to).contains(&sample.ip));
        let name = place.and_then(|n| mappings.get(n)?.function(sample.ip));
        let line = name.map(|name| {
            let id = *functions.entry(name).or_insert_with(|| {
                let (id, system) = (next(), strings.id(name));
                let readable = strings.id(&format!("{:#}", rustc_demangle::demangle(name)));
                profile.function.push(proto::Function { id, name: readable, system_name: system });
                id
            });
            proto::Line { function_id: id }
        });
        let location = *locations.entry(sample.ip).or_insert_with(|| {
            let id = next();
            let mapping_id = place.map_or(0, |n| n as u64 + 1);
            profile.location.push(proto::Location { id, mapping_id, address: sample.ip, line: line.into_iter().collect() });
            id
        });
        let count = i64::try_from(*count).unwrap_or(i64::MAX);
        let label = vec![proto::Label { key: strings.id("thread"), str: strings.id(&sample.thread) }];
        profile.sample.push(proto::Sample { location_id: vec![location], value: vec![count, count.saturating_mul(period)], label });
    }
    profile.string_table = strings.all;
    profile
}

#[derive(Default)]
struct Strings {
    ids: BTreeMap<String, i64>,
    all: Vec<String>,
}

impl Strings {
    fn id(&mut self, text: &str) -> i64 {
        if let Some(id) = self.ids.get(text) {
            return *id;
        }
        let id = self.all.len() as i64;
        self.all.push(text.to_owned());
        self.ids.insert(text.to_owned(), id);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[inline(never)]
    fn burn_for_the_profile(until: &std::sync::atomic::AtomicBool) -> u64 {
        let mut sum = 1u64;
        while !until.load(std::sync::atomic::Ordering::Relaxed) {
            for n in 0..10_000u64 {
                sum = std::hint::black_box(sum.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(n));
            }
        }
        sum
    }

    #[test]
    fn a_busy_thread_is_found_by_name_and_function() {
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let seen = std::sync::Arc::clone(&stop);
        let busy = std::thread::Builder::new().name("busy".into()).spawn(move || burn_for_the_profile(&seen)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let taken = runtime.block_on(take(Duration::from_millis(1_500)));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        busy.join().unwrap();
        let packed = match taken {
            Ok(packed) => packed,
            Err(error) => {
                assert!(std::env::var_os("TOKENGAUGE_REQUIRE_BPF").is_none(), "{error}");
                return eprintln!("skipped: {error}");
            }
        };
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(packed.as_slice()).read_to_end(&mut bytes).unwrap();
        let profile = proto::Profile::decode(bytes.as_slice()).unwrap();
        let text = |id: i64| profile.string_table[id as usize].as_str();
        let of_busy: i64 = profile.sample.iter().filter(|s| text(s.label[0].str) == "busy").map(|s| s.value[0]).sum();
        assert!(of_busy >= 10, "{of_busy} samples of a thread that was always busy");
        let found = profile.sample.iter().filter(|s| text(s.label[0].str) == "busy").any(|s| {
            let location = profile.location.iter().find(|l| l.id == s.location_id[0]).unwrap();
            let function = location.line.first().and_then(|l| profile.function.iter().find(|f| f.id == l.function_id));
            function.is_some_and(|f| text(f.name).contains("burn_for_the_profile") || text(f.name).contains("black_box"))
        });
        assert!(found, "{:?}", profile.function.iter().map(|f| text(f.name)).collect::<Vec<_>>());
    }
}
