//! Bounded memory of earlier requests: by content, and by prefix as a provider's prompt cache.
//!
//! Receives the pieces of a prompt and never reads one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use xxhash_rust::xxh3::xxh3_128;

use super::locked;
use super::validate::Message;

const MAX_PREFIXES: usize = 100_000;
/// Maximum number of continuations remembered for one prefix.
const MAX_BRANCHES: usize = 16;

/// Map that forgets entries not requested during the last `max` insertions or more.
pub struct Generations<V> {
    young: HashMap<u128, V>,
    old: HashMap<u128, V>,
    max: usize,
}

impl<V> Generations<V> {
    pub fn new(max: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), max }
    }

    pub fn find(&mut self, key: u128) -> Option<&mut V> {
        if let Some(value) = self.old.remove(&key) {
            self.insert(key, value);
        }
        self.young.get_mut(&key)
    }

    pub fn insert(&mut self, key: u128, value: V) {
        if self.young.len() >= self.max {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }
}

/// Prefixes of earlier prompts, each with the pieces that followed it.
pub struct PrefixCache {
    nodes: Mutex<Generations<Vec<Arc<Message>>>>,
}

impl Default for PrefixCache {
    fn default() -> Self {
        Self { nodes: Mutex::new(Generations::new(MAX_PREFIXES)) }
    }
}

impl PrefixCache {
    /// Tokens at the front of `prompt` shared with an earlier one under `root`.
    pub fn shared_tokens(&self, root: u128, prompt: &[Arc<Message>]) -> u64 {
        let mut nodes = locked(&self.nodes);
        let mut node = root;
        let mut shared = 0;
        for piece in prompt {
            let Some(branches) = nodes.find(node) else {
                return shared;
            };
            if branches.iter().any(|known| known.identity == piece.identity) {
                shared += piece.tokens;
                node = follow(node, piece.identity);
                continue;
            }
            let common = branches.iter().map(|known| common_tokens(known, piece));
            return shared + common.max().unwrap_or(0);
        }
        shared
    }

    /// Adds `prompt` to the earlier ones.
    pub fn remember(&self, root: u128, prompt: &[Arc<Message>]) {
        let mut nodes = locked(&self.nodes);
        let mut node = root;
        for piece in prompt {
            match nodes.find(node) {
                None => nodes.insert(node, vec![piece.clone()]),
                Some(branches) => {
                    if !branches.iter().any(|known| known.identity == piece.identity) {
                        if branches.len() == MAX_BRANCHES {
                            branches.remove(0);
                        }
                        branches.push(piece.clone());
                    }
                }
            }
            node = follow(node, piece.identity);
        }
    }
}

fn common_tokens(known: &Message, piece: &Message) -> u64 {
    let pairs = known.ranks.iter().zip(&piece.ranks);
    pairs.take_while(|(left, right)| left == right).count() as u64
}

fn follow(node: u128, identity: u128) -> u128 {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&node.to_le_bytes());
    bytes[16..].copy_from_slice(&identity.to_le_bytes());
    xxh3_128(&bytes)
}
