//! The pair that shows what keeping account costs: weir as a plain proxy, and the same binary with
//! virtual keys and the journal, its store in a file. It must not differ in anything else.

use std::error::Error;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::report::{Figure, Goal, Ratio};
use crate::{CREDENTIAL, Comparison, Target, folder, subject};

/// The metered one against the bare one.
pub const COMPARISON: Comparison = Comparison {
    ratios: [
        Ratio { name: "CPU ÷ bare", figure: Figure::CpuPerRequest, base: 1 },
        Ratio { name: "p50 ÷ bare", figure: Figure::TotalP50, base: 1 },
    ],
    goal: Some(Goal { of: "CPU and p50", ratio: 1.15 }),
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_weir");

/// The upstream itself, weir in open mode without a journal, and weir with both.
pub fn start(upstream: SocketAddr) -> Result<Vec<Target>, Box<dyn Error>> {
    let folder = folder().join("added_cost-ledger");
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => fs::create_dir_all(&folder)?,
    }
    let bare = written(&folder, "bare.toml", "[ledger]\nenabled = false\n")?;
    let own_key = written(&folder, "provider.key", "sk-provider-of-the-bench\n")?;
    let settings = format!(
        "[auth]\nmode = \"keys\"\n[admin]\nlisten = \"off\"\n[upstream]\napi_key_file = {own_key:?}\n"
    );
    let metered = written(&folder, "metered.toml", &settings)?;
    let store = folder.join("weir.db");
    let secret = make_key(&metered, &store)?;
    Ok(vec![
        Target::upstream(upstream),
        Target::start(weir("bare", &bare, Path::new(":memory:")), upstream, CREDENTIAL)?,
        Target::start(weir("metered", &metered, &store), upstream, &secret)?,
    ])
}

fn weir(name: &str, config: &Path, store: &Path) -> crate::Subject {
    let (config, store) = (config.to_string_lossy(), store.to_string_lossy());
    let flags = ["--log-level", "info", "--config", &config, "--store", &store];
    subject(name, Path::new(PROGRAM), &["serve"], &flags)
}

fn written(folder: &Path, name: &str, content: &str) -> io::Result<PathBuf> {
    let path = folder.join(name);
    fs::write(&path, content)?;
    // Keys are read only from files that are their owner's alone.
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    }
    Ok(path)
}

/// Makes a virtual key in the store, which the server then finds there.
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
    Ok(shown["secret"].as_str().ok_or("weir keys create shows no secret")?.to_owned())
}
