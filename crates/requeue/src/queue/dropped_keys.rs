//! The keys whose pending runs a shutdown has dropped. They are stored until `take_dropped` or a
//! drain returns them.

/// A list in pieces. It grows under the lock of the queue, so it must not copy its contents.
pub(super) struct DroppedKeys<K> {
    pieces: Vec<Vec<K>>,
}

const PIECE: usize = 1024;

impl<K> DroppedKeys<K> {
    pub(super) const fn new() -> Self {
        Self { pieces: Vec::new() }
    }

    pub(super) fn push(&mut self, key: K) {
        match self.pieces.last_mut() {
            Some(piece) if piece.len() < piece.capacity().max(PIECE) => piece.push(key),
            _ => self.pieces.push(vec![key]),
        }
    }

    pub(super) fn append_keys(&mut self, keys: Vec<K>) {
        if !keys.is_empty() {
            self.pieces.push(keys);
        }
    }

    pub(super) fn into_keys(self) -> impl Iterator<Item = K> {
        self.pieces.into_iter().flatten()
    }
}
