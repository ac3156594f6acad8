//! The network: two hidden layers with rectified units, squared error, gradient descent with momentum.
//!
//! The run loop calls `step` once for each step. The rule kept here: every sum has one fixed order and uses only
//! single-precision addition and multiplication (no fused operations, no library functions), so a step gives the
//! same bits on any machine and in any build.

/// Inputs of the network.
const INPUTS: usize = 16;
/// Outputs of the network.
const OUTPUTS: usize = 4;
/// Examples in one step.
const BATCH: usize = 8;
const LEARNING_RATE: f32 = 0.02;
const MOMENTUM: f32 = 0.875;

/// Streams of the generator, so that weights, teacher and examples are drawn independently of each other.
const STREAM_WEIGHTS: u64 = 1;
const STREAM_TEACHER: u64 = 2;
const STREAM_EXAMPLES: u64 = 3;

/// Numbers from a seed (SplitMix64): the n-th number of a stream needs no state of the ones before it.
struct Numbers {
    state: u64,
}

impl Numbers {
    fn new(seed: u64, stream: u64, position: u64) -> Self {
        let mixed = mix(seed ^ mix(stream));
        Self {
            state: mix(mixed ^ mix(position.wrapping_add(1))),
        }
    }

    fn next_bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// A number in -1..1 with 24 bits, exact in single precision.
    fn next_unit(&mut self) -> f32 {
        let bits = (self.next_bits() >> 40) as u32;
        bits as f32 / 8_388_608.0 - 1.0
    }
}

fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// One fully connected layer: where its weights lie in the flat vector.
#[derive(Clone, Copy)]
struct Layer {
    inputs: usize,
    outputs: usize,
    weights_at: usize,
    biases_at: usize,
}

/// The network with its optimiser's state. Weights and velocities are flat vectors, so a checkpoint is two
/// slices of numbers.
pub(crate) struct Model {
    seed: u64,
    layers: [Layer; 3],
    /// All weights and biases, layer by layer.
    pub(crate) weights: Vec<f32>,
    /// The momentum of each weight.
    pub(crate) velocities: Vec<f32>,
}

impl Model {
    /// A fresh network.
    pub(crate) fn new(seed: u64, hidden: usize) -> Self {
        let sizes = [INPUTS, hidden, hidden, OUTPUTS];
        let mut at = 0;
        let layers = std::array::from_fn(|index| {
            let (inputs, outputs) = (sizes[index], sizes[index + 1]);
            let layer = Layer {
                inputs,
                outputs,
                weights_at: at,
                biases_at: at + inputs * outputs,
            };
            at = layer.biases_at + outputs;
            layer
        });
        let mut model = Self {
            seed,
            layers,
            weights: vec![0.0; at],
            velocities: vec![0.0; at],
        };
        let mut numbers = Numbers::new(seed, STREAM_WEIGHTS, 0);
        for layer in layers {
            let scale = 1.5 / layer.inputs as f32;
            for weight in &mut model.weights[layer.weights_at..layer.biases_at] {
                *weight = numbers.next_unit() * scale;
            }
        }
        model
    }

    /// Trains on the examples of this step and returns their mean squared error before the change.
    pub(crate) fn step(&mut self, step: u64) -> f32 {
        let mut gradient = vec![0.0; self.weights.len()];
        let mut examples = Numbers::new(self.seed, STREAM_EXAMPLES, step);
        let mut loss = 0.0;
        for _ in 0..BATCH {
            let input: Vec<f32> = (0..INPUTS).map(|_| examples.next_unit()).collect();
            let wanted = self.teach(&input);
            loss += self.learn(&input, &wanted, &mut gradient);
        }
        let rate = LEARNING_RATE / BATCH as f32;
        for ((weight, velocity), slope) in self.weights.iter_mut().zip(&mut self.velocities).zip(&gradient) {
            *velocity = *velocity * MOMENTUM - slope * rate;
            *weight += *velocity;
        }
        loss / (BATCH * OUTPUTS) as f32
    }

    /// The right answer for an input: a fixed piecewise linear function of it.
    fn teach(&self, input: &[f32]) -> [f32; OUTPUTS] {
        let mut numbers = Numbers::new(self.seed, STREAM_TEACHER, 0);
        std::array::from_fn(|_| {
            let mut sum = 0.0;
            for value in input {
                sum += numbers.next_unit() * value;
            }
            if sum > 0.0 { sum } else { sum * 0.25 }
        })
    }

    /// Adds this example's slopes to the gradient; returns its squared error.
    fn learn(&self, input: &[f32], wanted: &[f32; OUTPUTS], gradient: &mut [f32]) -> f32 {
        let mut activations = vec![input.to_vec()];
        for (index, layer) in self.layers.iter().enumerate() {
            let rectify = index + 1 < self.layers.len();
            activations.push(self.forward(*layer, &activations[index], rectify));
        }
        let mut loss = 0.0;
        let mut slopes: Vec<f32> = Vec::with_capacity(OUTPUTS);
        for (got, wanted) in activations[self.layers.len()].iter().zip(wanted) {
            let error = got - wanted;
            loss += error * error;
            slopes.push(2.0 * error);
        }
        for (index, layer) in self.layers.iter().enumerate().rev() {
            slopes = self.backward(*layer, &activations[index], &slopes, gradient);
        }
        loss
    }

    fn forward(&self, layer: Layer, input: &[f32], rectify: bool) -> Vec<f32> {
        (0..layer.outputs)
            .map(|output| {
                let row = layer.weights_at + output * layer.inputs;
                let mut sum = self.weights[layer.biases_at + output];
                for (weight, value) in self.weights[row..row + layer.inputs].iter().zip(input) {
                    sum += weight * value;
                }
                if rectify && sum < 0.0 { 0.0 } else { sum }
            })
            .collect()
    }

    /// Adds the layer's slopes to the gradient; returns those of its inputs. An input of zero is a rectified
    /// unit that was off, so no slope passes it.
    fn backward(&self, layer: Layer, input: &[f32], slopes: &[f32], gradient: &mut [f32]) -> Vec<f32> {
        let mut below = vec![0.0; layer.inputs];
        for (output, slope) in slopes.iter().enumerate() {
            let row = layer.weights_at + output * layer.inputs;
            for index in 0..layer.inputs {
                gradient[row + index] += slope * input[index];
                below[index] += slope * self.weights[row + index];
            }
            gradient[layer.biases_at + output] += slope;
        }
        for (slope, value) in below.iter_mut().zip(input) {
            if *value == 0.0 {
                *slope = 0.0;
            }
        }
        below
    }
}

/// Numbers as little-endian bytes, the form of the checkpoint's files.
pub(crate) fn to_bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Fills the numbers from bytes; false when the count differs.
pub(crate) fn fill_from(numbers: &mut [f32], bytes: &[u8]) -> bool {
    if bytes.len() != numbers.len() * 4 {
        return false;
    }
    for (number, chunk) in numbers.iter_mut().zip(bytes.chunks_exact(4)) {
        *number = f32::from_le_bytes(chunk.try_into().expect("chunks of exactly four bytes"));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn training_lowers_the_loss() {
        let mut model = Model::new(1, 16);
        let losses: Vec<f32> = (1..=400).map(|step| model.step(step)).collect();
        let mean = |part: &[f32]| part.iter().sum::<f32>() / part.len() as f32;
        let (first, last) = (mean(&losses[..20]), mean(&losses[380..]));
        assert!(last < first / 4.0, "from {first} to {last}");
    }

    #[test]
    fn the_bits_of_the_weights_are_the_same_in_every_build() {
        let mut model = Model::new(7, 8);
        for step in 1..=50 {
            model.step(step);
        }
        let hash = blake3::hash(&to_bytes(&model.weights)).to_hex();
        assert_eq!(
            &hash[..16],
            GOLDEN_50_STEPS,
            "a change here changes what a resumed run ends with"
        );
    }

    const GOLDEN_50_STEPS: &str = "611b6352f383c9df";

    #[test]
    fn numbers_survive_their_bytes() {
        let numbers = [0.0, -1.5, f32::MIN_POSITIVE, 3.25e7];
        let mut back = [0.0; 4];
        assert!(fill_from(&mut back, &to_bytes(&numbers)));
        assert_eq!(back, numbers);
        assert!(!fill_from(&mut back[..3], &to_bytes(&numbers)));
    }
}
