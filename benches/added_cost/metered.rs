//! Pairs that isolate the cost of accounting. One is weir as a plain proxy, against the same binary
//! with virtual keys and the journal in a file store. The other is that one against one with
//! budgets. A pair must not differ in anything else.

use std::error::Error;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::free_address;
use crate::report::{Figure, Goal, Ratio};
use crate::watched::Observed;
use crate::{CREDENTIAL, Comparison, Target, folder, subject};

/// The metered weir against the bare one.
pub const COMPARISON: Comparison = Comparison {
    ratios: [
        Ratio { name: "CPU ÷ bare", figure: Figure::CpuPerRequest, base: 1 },
        Ratio { name: "p50 ÷ bare", figure: Figure::TotalP50, base: 1 },
    ],
    goal: Some(Goal { of: "CPU and p50", ratio: 1.15 }),
};

/// The weir with budgets against the one without.
pub const BUDGETS: Comparison = Comparison {
    ratios: [
        Ratio { name: "CPU ÷ metered", figure: Figure::CpuPerRequest, base: 1 },
        Ratio { name: "p50 ÷ metered", figure: Figure::TotalP50, base: 1 },
    ],
    goal: None,
};
/// Budgets of every request of the bench; none is ever exhausted.
const LIMITS: [&str; 3] = ["all/usd/day", "team:bench/usd/month", "key:*/tokens/24h"];

const PROGRAM: &str = env!("CARGO_BIN_EXE_weir");

/// Starts the upstream, weir in open mode without a journal, and weir with keys and a journal.
pub fn start(upstream: SocketAddr) -> Result<Vec<Target>, Box<dyn Error>> {
    let folder = emptied("added_cost-ledger")?;
    let bare = written(&folder, "bare.toml", "[ledger]\nenabled = false\n")?;
    Ok(vec![
        Target::upstream(upstream),
        Target::start(weir("bare", &bare, Path::new(":memory:")), upstream, CREDENTIAL)?,
        metered("metered", &folder, upstream, &[])?,
    ])
}

/// Starts the upstream, weir with keys and a journal, and the same with budgets.
pub fn start_budgets(upstream: SocketAddr) -> Result<Vec<Target>, Box<dyn Error>> {
    let (without, with) = (emptied("added_cost-metered")?, emptied("added_cost-budgets")?);
    Ok(vec![
        Target::upstream(upstream),
        metered("metered", &without, upstream, &[])?,
        metered("budgets", &with, upstream, &LIMITS)?,
    ])
}

/// Starts weir with keys, a journal and an admin listener.
pub fn start_observed(upstream: SocketAddr) -> Result<Observed, Box<dyn Error>> {
    let folder = emptied("added_cost-watched")?;
    let admin = free_address()?;
    let target = started("watched", &folder, upstream, (&admin.to_string(), &[]))?;
    let token = fs::read_to_string(folder.join("admin.token"))?.trim().to_owned();
    Ok(Observed { target, admin, token })
}

fn emptied(name: &str) -> io::Result<PathBuf> {
    let folder = folder().join(name);
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => fs::create_dir_all(&folder)?,
    }
    Ok(folder)
}

/// Starts weir with a key, a journal and these budgets.
fn metered(
    name: &str,
    folder: &Path,
    upstream: SocketAddr,
    budgets: &[&str],
) -> Result<Target, Box<dyn Error>> {
    started(name, folder, upstream, ("off", budgets))
}

/// Starts weir with an admin listener at `admin`, or none if it is "off", and these budgets.
fn started(
    name: &str,
    folder: &Path,
    upstream: SocketAddr,
    (admin, budgets): (&str, &[&str]),
) -> Result<Target, Box<dyn Error>> {
    let own_key = written(folder, "provider.key", "sk-provider-of-the-bench\n")?;
    let settings = format!(
        "[auth]\nmode = \"keys\"\n[admin]\nlisten = {admin:?}\n[upstream]\napi_key = \"file:{}\"\n",
        own_key.display()
    );
    let config = written(folder, "weir.toml", &settings)?;
    let store = folder.join("weir.db");
    let secret = make_key(&config, &store)?;
    for budget in budgets {
        set_budget(&config, &store, budget)?;
    }
    Ok(Target::start(weir(name, &config, &store), upstream, &secret)?)
}

/// Sets a budget that the bench never exhausts.
fn set_budget(config: &Path, store: &Path, budget: &str) -> Result<(), Box<dyn Error>> {
    let mut parts = budget.split('/');
    let (Some(scope), Some(measure), Some(window)) = (parts.next(), parts.next(), parts.next())
    else {
        return Err(format!("{budget} is not a budget").into());
    };
    let limit = if measure == "usd" { "1000000" } else { "1000000000000" };
    let measure = format!("--{measure}");
    let set = Command::new(PROGRAM)
        .args(["budgets", "set", scope, &measure, limit, "--per", window])
        .arg("--config")
        .arg(config)
        .arg("--store")
        .arg(store)
        .output()?;
    match set.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&set.stderr).into_owned().into()),
    }
}

fn weir(name: &str, config: &Path, store: &Path) -> crate::Subject {
    let (config, store) = (config.to_string_lossy(), store.to_string_lossy());
    let flags = ["--log-level", "info", "--config", &config, "--store", &store];
    subject(name, Path::new(PROGRAM), &["serve"], &flags)
}

fn written(folder: &Path, name: &str, content: &str) -> io::Result<PathBuf> {
    let path = folder.join(name);
    fs::write(&path, content)?;
    // Keys are read only from files that are private to their owner.
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    }
    Ok(path)
}

/// Creates a virtual key in the store, which the server then finds there.
fn make_key(config: &Path, store: &Path) -> Result<String, Box<dyn Error>> {
    let made = Command::new(PROGRAM)
        .args(["keys", "create", "bench", "--team", "bench", "--json"])
        .arg("--config")
        .arg(config)
        .arg("--store")
        .arg(store)
        .output()?;
    let shown: serde_json::Value = serde_json::from_slice(&made.stdout)
        .map_err(|_| String::from_utf8_lossy(&made.stderr).into_owned())?;
    Ok(shown["secret"].as_str().ok_or("weir keys create printed no secret")?.to_owned())
}
