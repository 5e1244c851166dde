use super::*;

const SECOND: u64 = 1_000_000_000;
const BOUNDS: Bounds = Bounds { max_bytes: 1 << 20, max_age: Duration::from_secs(3_600) };

/// A request that does not compress, so that sizes are known.
fn parcel(n: u32, len: usize) -> Parcel {
    let mut state = u64::from(n) + 1;
    let noise = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    });
    let bytes = n.to_le_bytes().into_iter().chain(noise).take(len).collect();
    Parcel::new(bytes, 10, u64::from(n) * SECOND, None)
}

fn number(parcel: &Parcel) -> u32 {
    u32::from_le_bytes(*parcel.plain().unwrap().first_chunk().unwrap())
}

fn open(folder: &Path) -> Queue {
    let (queue, damage) = Queue::open(folder, BOUNDS).unwrap();
    assert_eq!(damage, None);
    queue
}

/// Takes and settles everything.
fn drain(queue: &mut Queue, now: u64) -> Vec<u32> {
    std::iter::from_fn(|| {
        let (place, parcel) = queue.take(now)?;
        queue.settle(place);
        Some(number(&parcel))
    })
    .collect()
}

fn files(folder: &Path) -> usize {
    numbers(folder).unwrap().len()
}

#[test]
fn what_is_pushed_is_taken_in_order_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut queue = open(dir.path());
    assert!(!queue.waits() && queue.take(0).is_none());
    for n in 0..100 {
        queue.push(&parcel(n, 4_000), 0).unwrap();
    }
    assert!(queue.waits() && files(dir.path()) > 4);
    assert_eq!(queue.items(), 1_000);
    assert_eq!(drain(&mut queue, 0), (0..100).collect::<Vec<_>>());
    assert_eq!((queue.items(), queue.waits(), queue.dropped()), (0, false, Dropped::default()));
    assert!(queue.bytes() < SEGMENT.0 && files(dir.path()) <= 1);
    queue.push(&parcel(7, 100), 0).unwrap();
    assert_eq!(drain(&mut queue, 0), [7]);
}

#[test]
fn a_request_that_comes_back_is_next_and_what_is_on_its_way_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut queue = open(dir.path());
    (0..6).for_each(|n| queue.push(&parcel(n, 100), 0).unwrap());
    let (a, _) = queue.take(0).unwrap();
    let (b, _) = queue.take(0).unwrap();
    let (c, _) = queue.take(0).unwrap();
    assert!(queue.back(a));
    queue.settle(b);
    let (again, parcel) = queue.take(0).unwrap();
    assert_eq!((again, number(&parcel)), (a, 0));
    queue.settle(c);
    assert_eq!(queue.items(), 40);
    drop(queue);
    // 0 was on its way: everything from it on comes again, also what was settled behind it.
    let mut queue = open(dir.path());
    assert_eq!(drain(&mut queue, 0), [0, 1, 2, 3, 4, 5]);
    drop(queue);
    let mut queue = open(dir.path());
    assert_eq!((drain(&mut queue, 0), files(dir.path())), (vec![], 0));
}

#[test]
fn a_restart_goes_on_where_everything_is_settled() {
    let dir = tempfile::tempdir().unwrap();
    let mut queue = open(dir.path());
    (0..50).for_each(|n| queue.push(&parcel(n, 4_000), 0).unwrap());
    for n in 0..30 {
        let (place, parcel) = queue.take(0).unwrap();
        assert_eq!(number(&parcel), n);
        queue.settle(place);
    }
    drop(queue);
    let mut queue = open(dir.path());
    assert_eq!(queue.items(), 200);
    // New requests stand behind the old ones.
    (50..60).for_each(|n| queue.push(&parcel(n, 4_000), 0).unwrap());
    assert_eq!(drain(&mut queue, 0), (30..60).collect::<Vec<_>>());
}

#[test]
fn the_oldest_goes_when_it_is_full_and_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let mut queue = open(dir.path());
    let mut dropped = 0;
    for n in 0..600 {
        queue.push(&parcel(n, 4_000), 0).unwrap();
        assert!(queue.bytes() <= BOUNDS.max_bytes);
        dropped += queue.dropped().full;
    }
    let left = drain(&mut queue, 0);
    assert_eq!((left.len() as u64 * 10 + dropped, *left.last().unwrap()), (6_000, 599));
    assert!(left.windows(2).all(|w| w[1] == w[0] + 1));
    // No more than a segment is missing from the bound.
    assert!(left.len() as u64 * 4_000 > BOUNDS.max_bytes * 14 / 16, "{}", left.len());
}

#[test]
fn what_is_on_its_way_when_it_is_dropped_is_not_counted_twice() {
    let dir = tempfile::tempdir().unwrap();
    let mut queue = open(dir.path());
    queue.push(&parcel(0, 4_000), 0).unwrap();
    let (settled, _) = queue.take(0).unwrap();
    queue.push(&parcel(1, 4_000), 0).unwrap();
    let (failed, _) = queue.take(0).unwrap();
    (2..400).for_each(|n| queue.push(&parcel(n, 4_000), 0).unwrap());
    queue.settle(settled);
    assert!(!queue.back(failed));
    let left = drain(&mut queue, 0).len() as u64;
    assert_eq!((left * 10 + queue.dropped().full + 20, queue.items()), (4_000, 0));
}

#[test]
fn what_is_too_old_goes() {
    let dir = tempfile::tempdir().unwrap();
    let mut queue = open(dir.path());
    (0..40).for_each(|n| queue.push(&parcel(n * 100, 4_000), 0).unwrap());
    // At 5,000 s everything before 1,400 s is too old: whole segments, and the first ones of a segment.
    let left = drain(&mut queue, 5_000 * SECOND);
    assert_eq!((left[0], left.len()), (1_400, 26));
    assert_eq!(queue.dropped(), Dropped { expired: 140, ..Dropped::default() });
    // A clock that was set back makes nothing old.
    queue.push(&parcel(9_000, 100), 0).unwrap();
    assert_eq!(drain(&mut queue, SECOND), [9_000]);
}

#[test]
fn every_torn_tail_is_left_out_and_everything_before_it_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let mut queue = open(dir.path());
    (0..4).for_each(|n| queue.push(&parcel(n, 60), 0).unwrap());
    drop(queue);
    let file = path(dir.path(), numbers(dir.path()).unwrap()[0]);
    let bytes = std::fs::read(&file).unwrap();
    let frame = (bytes.len() - MAGIC.len()) / 4;
    for cut in 0..bytes.len() {
        std::fs::write(&file, &bytes[..cut]).unwrap();
        std::fs::remove_file(dir.path().join("cursor")).unwrap();
        let (mut queue, damage) = Queue::open(dir.path(), BOUNDS).unwrap();
        let whole = cut.saturating_sub(MAGIC.len()) / frame;
        assert_eq!(drain(&mut queue, 0).len(), whole, "{cut}");
        let clean = cut == 0 || (cut >= MAGIC.len() && (cut - MAGIC.len()).is_multiple_of(frame));
        assert_eq!(damage.is_none(), clean, "{cut}");
    }
}

#[test]
fn damage_behind_its_back_is_counted_and_the_next_segment_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let mut queue = open(dir.path());
    (0..40).for_each(|n| queue.push(&parcel(n, 4_000), 0).unwrap());
    let (first, _) = queue.take(0).unwrap();
    let all = numbers(dir.path()).unwrap();
    let held = scan(dir.path(), all[0], 0).unwrap().0.items;
    let file = OpenOptions::new().write(true).open(path(dir.path(), all[0])).unwrap();
    file.write_all_at(&[0xff; 64], 6_000).unwrap();
    let left = drain(&mut queue, 0);
    assert_eq!(left.len() as u64 * 10, 400 - held);
    queue.settle(first);
    assert_eq!((queue.dropped().damaged, queue.items()), (held - 10, 0));
    // The last segment, which is being written: what comes after the damage stands in a new one.
    queue.push(&parcel(50, 4_000), 0).unwrap();
    let last = *numbers(dir.path()).unwrap().last().unwrap();
    let end = queue.segments.back().unwrap().len;
    OpenOptions::new().write(true).open(path(dir.path(), last)).unwrap().write_all_at(&[0; 40], end - 400).unwrap();
    assert!(queue.take(0).is_none());
    queue.push(&parcel(51, 4_000), 0).unwrap();
    assert_eq!((drain(&mut queue, 0), queue.dropped().damaged), (vec![51], 10));
}

#[test]
fn two_agents_do_not_use_one_folder() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path());
    assert!(matches!(Queue::open(dir.path(), BOUNDS), Err(QueueError::Locked { .. })));
    drop(first);
    open(dir.path());
}

#[test]
fn a_request_larger_than_the_bound_is_an_error_and_nothing_goes_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut queue = open(dir.path());
    queue.push(&parcel(1, 100), 0).unwrap();
    assert!(queue.push(&parcel(2, 2 << 20), 0).is_err());
    assert_eq!(drain(&mut queue, 0), [1]);
}

#[test]
fn a_folder_that_vanishes_is_an_error_each_time_and_no_panic() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("queue");
    let mut queue = open(&folder);
    std::fs::rename(&folder, dir.path().join("gone")).unwrap();
    for _ in 0..3 {
        assert!(queue.push(&parcel(1, 100), 0).is_err());
    }
    assert_eq!((queue.waits(), queue.items()), (false, 0));
    std::fs::create_dir(&folder).unwrap();
    queue.push(&parcel(2, 100), 0).unwrap();
    assert_eq!(drain(&mut queue, 0), [2]);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

    /// Whatever stands in the folder: no panic, no request that was never written, and it can be used.
    #[test]
    fn whatever_stands_in_the_folder_it_can_be_used(edits in proptest::collection::vec((0..3_usize, 0..400_usize, 0..=255_u8), 0..12), cut in 0..700_usize) {
        let dir = tempfile::tempdir().unwrap();
        let mut queue = open(dir.path());
        (0..4).for_each(|n| queue.push(&parcel(n, 60), 0).unwrap());
        let (place, _) = queue.take(0).unwrap();
        queue.settle(place);
        drop(queue);
        let files = [path(dir.path(), 1), dir.path().join("cursor"), path(dir.path(), 2)];
        for (file, at, byte) in edits {
            let mut bytes = std::fs::read(&files[file]).unwrap_or_default();
            if bytes.len() <= at {
                bytes.resize(at + 1, byte);
            }
            bytes[at] = byte;
            std::fs::write(&files[file], bytes).unwrap();
        }
        let mut bytes = std::fs::read(&files[0]).unwrap();
        bytes.truncate(cut);
        std::fs::write(&files[0], bytes).unwrap();
        let (mut queue, _) = Queue::open(dir.path(), BOUNDS).unwrap();
        let found: Vec<u32> = drain(&mut queue, 0);
        proptest::prop_assert!(found.len() <= 4 && found.iter().all(|n| *n < 4), "{found:?}");
        queue.push(&parcel(9, 100), 0).unwrap();
        proptest::prop_assert_eq!(drain(&mut queue, 0), vec![9]);
    }
}
