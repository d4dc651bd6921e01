//! Requests for benches of the journal, and a folder for its files.

use std::path::PathBuf;
use std::sync::Arc;

use weir_store::ledger::{Attribution, Caller, Intent, KeyNames, RequestId, Settlement};
use weir_store::{Tenant, now_ms};

/// A temporary folder, removed on drop.
pub struct Folder(pub PathBuf);

impl Folder {
    /// Creates the folder of the bench named `bench`.
    pub fn new(bench: &str) -> Self {
        let path = std::env::temp_dir().join(format!("weir-{bench}-{}", std::process::id()));
        std::fs::create_dir(&path).expect("the temporary directory can be written");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // If removal fails, the system cleans up.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the intent of a request; each number has an ID of its own.
pub fn intent(number: u64) -> Arc<Intent> {
    let begun_ms = now_ms();
    let mut random = [0; 10];
    random[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    let key = KeyNames {
        key: format!("key_{:012x}", number % 20),
        team: "search".to_owned(),
        organisation: "example".to_owned(),
        user: "somebody@example.com".to_owned(),
    };
    Arc::new(Intent {
        id: RequestId::new(begun_ms, random),
        begun_ms,
        caller: Caller { tenant: Tenant([7; 16]), key: Some(Arc::new(key)) },
        route: "/v1/chat/completions".to_owned(),
        model: "gpt-4.1-mini-2025-04-14".to_owned(),
        upstream: "default".to_owned(),
        stream: true,
        action: "pass".to_owned(),
        zone: "green".to_owned(),
        attribution: Attribution::default(),
        received_tokens: Some(1234),
        sent_tokens: Some(1234),
        max_output_tokens: Some(1000),
        plan_ms: Some(1),
        held_nano_usd: Some(1_000_000),
        held_tokens: Some(1500),
    })
}

/// Returns the settlement of a usual request.
pub fn settlement() -> Settlement {
    Settlement {
        outcome: "complete".to_owned(),
        status: Some(200),
        prompt_tokens: Some(1240),
        completion_tokens: Some(321),
        cached_tokens: Some(0),
        cost_nano_usd: Some(1_234_567),
        saved_nano_usd: Some(0),
        first_byte_ms: Some(400),
        total_ms: Some(2000),
        ..Settlement::default()
    }
}
