//! The words of planted dialogues.

pub const NAMES: [&str; 20] = [
    "Runa", "Edvin", "Helga", "Okafor", "Priya", "Mateo", "Linnea", "Brandt", "Sato", "Ines",
    "Tomasz", "Yusuf", "Clara", "Bjorn", "Amara", "Felix", "Noor", "Greta", "Ivan", "Sofia",
];
pub const CITIES: [&str; 16] = [
    "Porto", "Tromso", "Ghent", "Leipzig", "Cork", "Turin", "Malmo", "Seville", "Krakow", "Basel",
    "Utrecht", "Split", "Aarhus", "Lyon", "Bergen", "Graz",
];
pub const ROLES: [&str; 8] =
    ["sister", "brother", "cousin", "neighbour", "landlord", "godmother", "nephew", "colleague"];
pub const THINGS: [&str; 10] = [
    "cello",
    "armchair",
    "bicycle",
    "sewing machine",
    "telescope",
    "wardrobe",
    "espresso machine",
    "typewriter",
    "canoe",
    "record player",
];
pub const EXPERTS: [&str; 6] =
    ["dentist", "optician", "notary", "physiotherapist", "tax adviser", "piano tuner"];
pub const ROOMS: [&str; 8] =
    ["hall", "kitchen", "cellar", "attic", "bathroom", "study", "pantry", "guest room"];
pub const WORKS: [&str; 8] = [
    "clockmaker",
    "translator",
    "roofer",
    "beekeeper",
    "surveyor",
    "midwife",
    "bookbinder",
    "cook",
];
pub const FOODS: [&str; 10] = [
    "walnuts", "celery", "mustard", "shrimps", "sesame", "lupins", "eggs", "soy", "peaches", "rye",
];
pub const COLOURS: [&str; 9] =
    ["Ochre", "Turquoise", "Crimson", "Ivory", "Olive", "Lilac", "Indigo", "Rust", "Mint"];
pub const PRODUCTS: [&str; 6] = [
    "silicate paint",
    "brown paper and an iron",
    "lime wash",
    "potter's clay",
    "chalk plaster",
    "white spirit",
];
pub const USER_TALK: [&str; 40] = [
    "I talked to {name} for an hour about the {thing}, and we got nowhere.",
    "My {role} called again, and it was all about the trip to {city}.",
    "Is {city} worth a weekend in winter?",
    "{name} would rather go to {city}, and {name} would rather stay at home.",
    "The {thing} is still standing in the {room}, and I keep walking into it.",
    "How much do people pay for a {thing} these days?",
    "Someone offered {name} {number} euros for the {thing}, which is far too little.",
    "I thought about giving my {role} a {thing}, but it would cost me {number} euros.",
    "{name}'s sister came along too, and we had {food} and talked about work.",
    "I have to find a time for the {expert}, and one for the {expert} too.",
    "The {expert} in {city} was booked out until {day}.",
    "My appointment on {day} was cancelled, so I sat in the {room} and read.",
    "What goes with {food} that is not too heavy?",
    "We had {food} for dinner, and my {role} asked for more.",
    "{name} does not like {food}, but eats it when there is nothing else.",
    "The {room} needs a new colour, and {colour} is not what I want.",
    "Somebody painted a boat {colour}, and now the whole harbour talks about it.",
    "I saw {name} at the harbour today, next to a {colour} boat.",
    "My {role} says the {room} would look better in {colour}.",
    "{name} lived near {city} as a child, or so the story goes.",
    "My {role} once lived in {city}, for a year or two.",
    "{name} knows a {work} in {city} who does good work.",
    "I would have liked to be a {work}, but who lives on that?",
    "A {work} came to look at the {room} and gave me a price of {number} euros.",
    "{name} wants to change jobs and asked me what I think.",
    "My {role} works too much, if you ask me.",
    "The rug in the {room} has seen better days.",
    "There is a wall in the {room} that I would like to take down.",
    "{name} forgot a bag on the train, and somebody brought it back.",
    "We took the night train to {city} once, {name} and I.",
    "I want to learn something new this winter, sailing perhaps.",
    "Should I order the {thing}, or wait until it is cheaper?",
    "The order that I sent back has not been paid for yet, {number} euros.",
    "I met {name} and {name} at the station, of all places.",
    "{name} gave me an old book, and I gave {name} a plant.",
    "My {role} was given a globe at school and never looked at it.",
    "What was it that you said about {city} the other day?",
    "Do you remember the winter when it snowed in {city}?",
    "{name} is always the last one to leave, as everybody knows.",
    "On {day} I will be with my {role}, so not at home.",
];
pub const ASSISTANT_TALK: [&str; 30] = [
    "A decent {thing} costs between {number} and {number} euros, more if it was restored.",
    "That sounds like {name}.",
    "In {city} I would walk along the water first and look for a place to eat afterwards.",
    "The old town of {city} is small, and two days are enough for it.",
    "For a {room} I would take something lighter than {colour}.",
    "With {food} I would serve a plain salad and good bread.",
    "An {expert} usually has a free hour early in the morning.",
    "You could ask {name} whether the {thing} can stay there for a while.",
    "Your {role} may simply want some company.",
    "It is a pity about the {thing}, but {number} euros are a lot of money.",
    "A {work} earns little at first, and it gets better with the years.",
    "That is a long way to go for a {thing}.",
    "If {name} comes, you can cook something with {food}.",
    "It helps to write down what you want to ask the {expert}.",
    "People who live in {city} say that the winters are mild.",
    "I would keep the {room} as it is and see how you like it in spring.",
    "Whoever owns a boat has work for every weekend.",
    "It can take until {day} before they answer.",
    "A rug like that can be cleaned, but a new one is often cheaper.",
    "Damp in a {room} mostly comes from too little air.",
    "Perhaps {name} and your {role} would get along.",
    "Then you have something to look forward to.",
    "That is how it goes with families.",
    "You sound tired; was it a long day?",
    "I would not decide that today.",
    "Some people learn to sail in a week, others never do.",
    "A present should be something that one would not buy oneself.",
    "Working close to home is worth more than money.",
    "Then it is settled, at least for now.",
    "Tell me how it went when you are back from {city}.",
];
