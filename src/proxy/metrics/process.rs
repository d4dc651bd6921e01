//! Figures of the process under the names that all Prometheus clients use, from `/proc`. Other systems
//! than Linux have none.

use prometheus_client::registry::Registry;

/// Adds the figures that the system gives.
#[cfg(target_os = "linux")]
pub(super) fn register(registry: &mut Registry) {
    linux::register(registry);
}

/// Adds nothing.
#[cfg(not(target_os = "linux"))]
pub(super) fn register(_: &mut Registry) {}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs;
    use std::sync::OnceLock;
    use std::sync::atomic::AtomicU64;

    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::gauge::Gauge;
    use prometheus_client::registry::{Registry, Unit};

    use crate::proxy::metrics::gauges::amount;

    /// Figures of `/proc/self/stat`.
    #[derive(Debug, PartialEq)]
    pub(super) struct Stat {
        pub(super) cpu_ticks: u64,
        /// Since the system started.
        pub(super) start_ticks: u64,
        pub(super) virtual_bytes: u64,
        pub(super) resident_pages: u64,
    }

    impl Stat {
        /// Parses the file. The program's name may hold blanks and parentheses.
        pub(super) fn parse(text: &str) -> Option<Self> {
            let (_, fields) = text.rsplit_once(") ")?;
            let fields: Vec<&str> = fields.split_whitespace().collect();
            // The first of them is the third field of the file.
            let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
            Some(Self {
                cpu_ticks: field(14)? + field(15)?,
                start_ticks: field(22)?,
                virtual_bytes: field(23)?,
                resident_pages: field(24)?,
            })
        }
    }

    pub(super) fn register(registry: &mut Registry) {
        let stat = fs::read_to_string("/proc/self/stat").ok().as_deref().and_then(Stat::parse);
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        if let Some(stat) = stat {
            let cpu: Counter<f64, AtomicU64> = Counter::default();
            cpu.inc_by(stat.cpu_ticks as f64 / ticks);
            let help = "User and system CPU time of the process";
            registry.register_with_unit("process_cpu", help, Unit::Seconds, cpu);
            let resident_bytes = stat.resident_pages * rustix::param::page_size() as u64;
            amount(registry, "process_resident_memory_bytes", "Resident memory", resident_bytes);
            let help = "Virtual memory";
            amount(registry, "process_virtual_memory_bytes", help, stat.virtual_bytes);
            if let Some(boot_s) = boot_seconds() {
                let started: Gauge<f64, AtomicU64> = Gauge::default();
                started.set(boot_s as f64 + stat.start_ticks as f64 / ticks);
                let help = "Start of the process since 1970";
                registry.register_with_unit("process_start_time", help, Unit::Seconds, started);
            }
        }
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            let open = u64::try_from(open.count()).unwrap_or(u64::MAX);
            amount(registry, "process_open_fds", "Open file descriptors", open);
        }
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        if let Some(limit) = limit {
            amount(registry, "process_max_fds", "Maximum number of file descriptors", limit);
        }
    }

    /// Returns the time at which the system started, in seconds since 1970. The file is long, so it is
    /// read once.
    fn boot_seconds() -> Option<u64> {
        static BOOT_SECONDS: OnceLock<Option<u64>> = OnceLock::new();
        *BOOT_SECONDS.get_or_init(read_boot_seconds)
    }

    fn read_boot_seconds() -> Option<u64> {
        let text = fs::read_to_string("/proc/stat").ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("btime "))?;
        line.trim().parse().ok()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::linux::Stat;

    #[test]
    fn figures_stand_behind_a_name_of_any_kind() {
        let text = "42 (we) (ir) S 1 42 42 0 -1 4194560 900 0 0 0 70 30 0 0 20 0 9 0 1234 \
                    8192000 555 18446744073709551615 1 1 0";
        let expected = Stat {
            cpu_ticks: 100,
            start_ticks: 1234,
            virtual_bytes: 8_192_000,
            resident_pages: 555,
        };
        assert_eq!(Stat::parse(text), Some(expected));
        assert_eq!(Stat::parse("42 (weir) S 1"), None);
        assert_eq!(Stat::parse(""), None);
    }
}
