use super::*;
use proptest::prelude::*;

const LONGEST: u64 = u64::MAX;

fn delay(bucket: &mut Bucket, nanos: u64) -> u64 {
    match bucket.delay(&(), Time::from_nanos(nanos)) {
        Duration::MAX => LONGEST,
        delay => u64::try_from(delay.as_nanos()).unwrap(),
    }
}

/// The rate in tokens per second, the burst in tokens, and pairs (now, delay) in nanoseconds. They
/// were recorded from golang.org/x/time/rate 0.16. In some pairs, the clock goes back.
type Recorded = (f64, u32, &'static [(u64, u64)]);
const RECORDED: [Recorded; 9] = [
    (
        10.0,
        3,
        &[
            (5_093_298_265, 0),
            (5_212_421_641, 0),
            (5_279_064_780, 0),
            (5_154_478_369, 0),
            (5_182_983_169, 4_852_060),
            (5_269_772_484, 18_062_745),
            (5_330_510_563, 57_324_666),
            (5_358_145_061, 129_690_169),
            (5_219_197_422, 229_690_169),
            (5_327_219_595, 221_667_996),
            (5_344_924_585, 303_963_006),
            (5_415_719_791, 333_167_800),
            (5_510_432_335, 338_455_256),
            (5_388_553_229, 438_455_256),
        ],
    ),
    (
        3.0,
        2,
        &[
            (5_268_985_534, 0),
            (5_356_584_623, 0),
            (5_495_746_813, 106_572_054),
            (5_285_312_698, 439_905_387),
            (5_357_306_458, 701_244_960),
            (5_716_989_775, 674_894_977),
            (5_775_860_651, 949_357_434),
            (6_051_036_617, 1_007_514_802),
            (5_604_116_062, 1_340_848_135),
            (5_701_384_077, 1_576_913_453),
            (5_983_501_391, 1_628_129_472),
            (6_159_842_931, 1_785_121_266),
            (6_386_912_308, 1_891_385_222),
            (6_037_970_789, 2_224_718_555),
        ],
    ),
    (
        0.3,
        1,
        &[
            (5_229_551_904, 0),
            (6_051_164_719, 2_511_720_518),
            (7_886_472_914, 4_009_745_656),
            (5_978_814_581, 7_343_078_990),
            (6_364_016_974, 10_291_209_930),
            (7_016_319_995, 12_972_240_242),
            (7_051_459_946, 16_270_433_625),
            (7_815_401_685, 18_839_825_219),
            (6_724_088_258, 22_173_158_552),
            (8_656_466_542, 23_574_113_602),
            (9_325_945_991, 26_237_967_486),
            (10_603_451_353, 28_293_795_457),
            (12_445_116_662, 29_785_463_482),
            (10_450_646_077, 33_118_796_815),
        ],
    ),
    (
        1e6,
        5,
        &[
            (5_000_000_166, 0),
            (5_000_000_327, 0),
            (5_000_000_854, 0),
            (5_000_000_014, 0),
            (5_000_000_034, 0),
            (5_000_000_072, 254),
            (5_000_000_317, 1_009),
            (5_000_000_704, 1_622),
            (5_000_000_138, 2_622),
            (5_000_000_402, 3_358),
            (5_000_000_620, 4_140),
            (5_000_000_834, 4_926),
            (5_000_001_324, 5_436),
            (5_000_001_008, 6_436),
        ],
    ),
    (
        7.7,
        4,
        &[
            (5_031_273_403, 0),
            (5_063_064_523, 0),
            (5_114_962_598, 0),
            (5_051_685_114, 0),
            (5_061_503_575, 36_362_473),
            (5_117_301_631, 110_434_547),
            (5_143_917_466, 213_688_842),
            (5_200_648_534, 286_827_904),
            (5_153_367_791, 416_698_034),
            (5_160_624_562, 539_311_393),
            (5_199_221_584, 630_584_501),
            (5_241_400_481, 718_275_733),
            (5_262_594_449, 826_951_895),
            (5_193_114_909, 956_822_025),
        ],
    ),
    (
        0.0,
        2,
        &[
            (5_183_655_509, 0),
            (6_728_033_843, 0),
            (6_970_959_502, LONGEST),
            (5_631_106_291, LONGEST),
        ],
    ),
    (
        1e-12,
        1,
        &[
            (5_824_548_478, 0),
            (6_119_887_938, LONGEST),
            (7_277_133_231, LONGEST),
            (5_419_349_013, LONGEST),
        ],
    ),
    (
        5.0,
        0,
        &[
            (5_353_063_168, LONGEST),
            (6_292_939_829, LONGEST),
            (7_177_741_395, LONGEST),
            (4_788_133_556, LONGEST),
        ],
    ),
    (
        f64::MAX,
        0,
        &[(5_978_477_442, 0), (6_862_382_458, 0), (8_854_280_479, 0), (7_259_253_697, 0)],
    ),
];

#[test]
fn the_delays_are_those_of_the_original() {
    for (rate, burst, calls) in RECORDED {
        let mut bucket = Bucket::new(rate, burst);
        for &(now, expected) in calls {
            assert_eq!(delay(&mut bucket, now), expected, "{rate}/s, burst {burst}, at {now}");
        }
    }
}

#[test]
fn a_bucket_starts_full_and_then_makes_a_line() {
    let mut bucket = Bucket::new(10.0, 100);
    let now = 5_000_000_000;
    for _ in 0..100 {
        assert_eq!(delay(&mut bucket, now), 0);
    }
    assert_eq!(delay(&mut bucket, now), 100_000_000);
    assert_eq!(delay(&mut bucket, now), 200_000_000);
}

#[test]
fn a_bucket_refills_but_holds_no_more_than_its_burst() {
    let mut bucket = Bucket::new(10.0, 2);
    let empty = |bucket: &mut Bucket, now| [(); 3].map(|()| delay(bucket, now));
    assert_eq!(empty(&mut bucket, 0), [0, 0, 100_000_000]);
    // The third failure took the token of the first 100 ms. The other 50 ms have added half of the
    // next token.
    assert_eq!(delay(&mut bucket, 150_000_000), 50_000_000);
    let hour_later = 3_600_000_000_000;
    assert_eq!(empty(&mut bucket, hour_later), [0, 0, 100_000_000]);
}

#[test]
fn a_bucket_counts_no_keys_and_gets_no_token_back() {
    let mut bucket = Bucket::new(10.0, 1);
    assert_eq!([1, 2].map(|key| bucket.delay(&key, Time::ZERO).as_millis()), [0, 100]);
    RateLimiter::forget(&mut bucket, &2);
    assert_eq!(RateLimiter::num_requeues(&bucket, &2), 0);
    assert_eq!(bucket.delay(&2, Time::ZERO).as_millis(), 200);
}

#[test]
fn rates_that_make_no_sense_are_none() {
    for rate in [0.0, -0.0, -5.0, f64::NEG_INFINITY, f64::NAN] {
        let mut bucket = Bucket::new(rate, 2);
        let calls = [0, 1, 2, u64::MAX].map(|now| delay(&mut bucket, now));
        assert_eq!(calls, [0, 0, LONGEST, LONGEST], "{rate}");
    }
}

#[test]
fn no_limit_is_no_limit_with_any_burst() {
    for rate in [f64::MAX, f64::INFINITY] {
        for burst in [0, 1, u32::MAX] {
            let mut bucket = Bucket::new(rate, burst);
            assert_eq!([3, 3, 1].map(|now| delay(&mut bucket, now)), [0; 3]);
            assert_eq!(RateLimiter::<()>::longest_delay(&bucket), Duration::ZERO);
        }
    }
}

#[test]
fn the_longest_is_a_full_refill() {
    let longest = |rate, burst| RateLimiter::<()>::longest_delay(&Bucket::new(rate, burst));
    assert_eq!(longest(10.0, 100), Duration::from_secs(10));
    assert_eq!(longest(0.0, 1), Duration::MAX);
    assert_eq!(longest(1.0, 0), Duration::MAX);
    assert_eq!(longest(f64::MIN_POSITIVE, u32::MAX), Duration::MAX);
}

#[test]
fn a_clock_that_goes_back_gives_no_token_and_takes_none() {
    let mut bucket = Bucket::new(1.0, 1);
    let second = 1_000_000_000;
    assert_eq!(delay(&mut bucket, 100 * second), 0);
    assert_eq!(delay(&mut bucket, 0), second);
    assert_eq!(delay(&mut bucket, second), second, "refilled from the time the clock went back to");
}

/// A bucket that computes with integers, without rounding. Its units are billionths of a token, and
/// whole tokens per second.
struct Model {
    billionths: i128,
    last: u64,
}

impl Model {
    fn delay(&mut self, rate: u32, burst: u32, now: u64) -> u64 {
        let full = i128::from(burst) * 1_000_000_000;
        let gained = i128::from(now.saturating_sub(self.last)) * i128::from(rate);
        self.billionths = (self.billionths + gained).min(full) - 1_000_000_000;
        self.last = now;
        u64::try_from(-self.billionths / i128::from(rate)).unwrap_or(0)
    }
}

proptest! {
    #[test]
    fn a_bucket_is_a_bucket(
        rate in 1..5_000_u32,
        burst in 1..20_u32,
        moves in prop::collection::vec((any::<bool>(), 0..2_000_u64, 0..7_u64), 0..200),
    ) {
        let mut bucket = Bucket::new(rate.into(), burst);
        let mut model = Model { billionths: i128::from(burst) * 1_000_000_000, last: 0 };
        let mut now = 1_000_000_000_u64;
        for (i, (back, permille, nanos)) in moves.into_iter().enumerate() {
            // Moves the clock forward by the time in which up to two tokens are added. Sometimes,
            // moves it back by that time instead.
            let span = permille * 1_000_000 / u64::from(rate) + nanos;
            now = if back && i % 5 == 0 { now.saturating_sub(span) } else { now + span };
            let (got, expected) = (delay(&mut bucket, now), model.delay(rate, burst, now));
            // The rounding error of the floating-point numbers is far below 5 ns.
            prop_assert!(got.abs_diff(expected) <= 5, "{got} for {expected}");
        }
    }

    /// The guarantee of a bucket: n + burst failures in a row are retried over at least the time in
    /// which n tokens are added.
    #[test]
    fn no_more_pass_than_the_rate_allows(
        rate in 1..1_000_u32,
        burst in 1..8_u32,
        gaps in prop::collection::vec(0..20_000_000_u64, 1..60),
    ) {
        let mut bucket = Bucket::new(rate.into(), burst);
        let mut now = 0;
        let mut runs = alloc::vec::Vec::new();
        for gap in gaps {
            now += gap;
            runs.push(now + delay(&mut bucket, now));
        }
        for (i, first) in runs.iter().enumerate() {
            for (n, last) in runs.iter().skip(i + burst as usize).enumerate() {
                let tokens = n as u64 + 1;
                prop_assert!(last - first + 5 >= tokens * 1_000_000_000 / u64::from(rate));
            }
        }
    }

    #[test]
    fn no_bucket_panics(rate: f64, burst: u32, times in prop::collection::vec(any::<u64>(), 0..9)) {
        let mut bucket = Bucket::new(rate, burst);
        for now in times {
            delay(&mut bucket, now);
        }
        let _ = RateLimiter::<()>::longest_delay(&bucket);
    }
}
