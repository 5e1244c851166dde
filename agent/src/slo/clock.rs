//! Tells a clock that was set from one that went on: the wall clock against the boot clock, which nobody sets.

/// A larger difference than this between two readings is a step, not drift: nanoseconds.
const STEP: i64 = 1_000_000_000;

/// Both clocks as they were last read.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    wall: u64,
    boot: u64,
}

impl Clock {
    /// From a reading of both, nanoseconds.
    pub const fn new(wall: u64, boot: u64) -> Self {
        Self { wall, boot }
    }

    /// By how much the wall clock was set since the last reading; `None` when it only went on. A machine that slept is no step: the boot
    /// clock went on as well.
    pub fn read(&mut self, wall: u64, boot: u64) -> Option<i64> {
        let expected = i128::from(self.wall) + i128::from(boot) - i128::from(self.boot);
        (self.wall, self.boot) = (wall, boot);
        let by = i64::try_from(i128::from(wall) - expected).unwrap_or(i64::MAX);
        (by.saturating_abs() >= STEP).then_some(by)
    }
}

/// Both clocks, nanoseconds.
pub fn now() -> (u64, u64) {
    (clock(libc::CLOCK_REALTIME), clock(libc::CLOCK_BOOTTIME))
}

#[expect(unsafe_code, reason = "clock_gettime fills the timespec that it is given")]
fn clock(id: libc::clockid_t) -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid timespec and outlives the call.
    unsafe { libc::clock_gettime(id, &raw mut t) };
    u64::try_from(t.tv_sec).unwrap_or(0).saturating_mul(1_000_000_000).saturating_add(u64::try_from(t.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_told_once_and_drift_is_not() {
        let second = 1_000_000_000u64;
        let mut clock = Clock::new(1_000 * second, 10 * second);
        assert_eq!(clock.read(1_001 * second + 1_000_000, 11 * second), None);
        assert_eq!(clock.read(4_602 * second, 12 * second), Some(3_599_999_000_000));
        assert_eq!(clock.read(4_603 * second, 13 * second), None);
        assert_eq!(clock.read(1_004 * second, 14 * second), Some(-3_600 * second as i64));
        assert_eq!(clock.read(9_004 * second, 8_014 * second), None, "asleep");
    }

    #[test]
    fn clocks_go_on() {
        let (a, b) = (now(), now());
        assert!(a.0 > 1_600_000_000_000_000_000 && b.1 >= a.1 && a.1 > 0);
    }
}
