//! Generates random numbers that depend only on a seed.

/// The generator Splitmix64. Each number needs one addition and one mix of the bits.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns the random suffix of a generated name: five characters without vowels,
    /// so that they form no words.
    pub(crate) fn name_suffix(&mut self) -> String {
        const CHARACTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        let count = CHARACTERS.len() as u64;
        (0..5).map(|_| char::from(CHARACTERS[(self.next() % count) as usize])).collect()
    }
}
