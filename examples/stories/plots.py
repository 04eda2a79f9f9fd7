"""The sentence templates of the story corpus.

Every tuple of templates lists interchangeable wordings, most likely first. The slots are filled
by `corpus.write_story`; a capitalised pronoun slot starts a sentence.
"""

from __future__ import annotations

OPENINGS = (
    "Once upon a time, there was a {trait}{kid} named {hero}.",
    "One day, a {trait}{kid} named {hero} found a {toy}.",
    "There once was a {trait}{kid} named {hero}.",
    "{hero} was a {trait}{kid}.",
)

OWNING = (
    ("{She} had a {toy}.", "It was a gift from {her} {giver}."),
    ("{She} loved to play with {her} {toy}.", "{She} took it with {them} every day."),
    ("{Her} favorite toy was a {toy}.", "{Her} {giver} made it for {them}."),
)
"""How the hero has the toy: a sentence, and one that may follow it."""

FOUND = ("{She} loved the {toy} very much.", "It was the best toy in the world.")
"""What follows an opening in which the hero finds the toy."""

OUTING_TOGETHER = (
    "One morning, {hero} went to the {place} with {her} friend {friend}.",
    "On a sunny day, {hero} and {her} friend {friend} went to the {place}.",
    "{She} wanted to show it to {her} friend {friend}, so they went to the {place}.",
    "After lunch, {hero} took the {toy} to the {place} to play with {friend}.",
)

OUTING_ALONE = (
    "One morning, {hero} went to the {place} to play.",
    "On a sunny day, {hero} took the {toy} to the {place}.",
    "{hero} ran to the {place} with the {toy} in {her} hands.",
    "After lunch, {hero} walked to the {place}.",
)

PROBLEMS = {
    "lost": (
        "When it was time to go home, {hero} could not find the {toy}.",
        "Then {hero} looked down, and the {toy} was gone.",
        "But on the way home, {hero} did not have the {toy}.",
    ),
    "stuck": (
        "Then a strong wind came, and the {toy} got stuck {high}.",
        "But the wind blew the {toy} away, and it got stuck {high}.",
        "But {hero} threw the {toy} too high, and it got stuck {high}.",
    ),
    "water": (
        "Then the {toy} fell into the {water}.",
        "But {hero} slipped, and the {toy} fell into the {water}.",
        "But {hero} dropped the {toy}, and it fell into the {water}.",
    ),
    "taken": (
        "Then a {thief} came and took the {toy}.",
        "But a {thief} saw the {toy} and ran away with it.",
        "But when {hero} sat down to eat, a {thief} took the {toy}.",
    ),
    "broken": (
        "Then {hero} fell down, and the {toy} broke.",
        "But the {toy} hit a rock, and it broke.",
        "But {hero} sat down on the {toy}, and it broke.",
    ),
    "lonely": (
        "{She} saw a {kid_friend} named {friend}. {He_friend} was all alone.",
        "There {she} met a {kid_friend} named {friend}. {He_friend} looked sad.",
        "A {kid_friend} named {friend} sat under a tree. {He_friend} did not have a toy.",
    ),
}

STRUGGLES = {
    "lost": ("{She} looked and looked, but it was not there.", "{She} looked all around."),
    "lonely": ('"Why are you sad?" asked {hero}.', '"What is wrong?" asked {hero}.'),
    "stuck": (
        "{She} jumped and jumped, but {she} could not reach it.",
        "It was too high for {them}.",
    ),
    "water": ("The water was too deep for {them}.", "It was too far away for {them}."),
    "taken": ("{She} ran and ran, but the {thief} was too fast.", '"Stop!" said {hero}.'),
    "broken": ('"Oh no!" said {hero}.', "{She} did not know what to do."),
}

FEELINGS = ("{She} was very sad.", "{She} started to cry.", "{hero} felt sad.")

FRIEND_OFFERS = (
    '"Do not cry," said {friend}. "I will help you."',
    '"I can help you," said {friend}.',
    '{friend} said, "Do not be sad. I have a plan."',
)

ANIMAL_OFFERS = (
    'A {animal} saw {them} and asked, "Why are you sad?" "My {toy} is {state}," said {hero}.',
    '"I can help you," said a {animal}.',
)

STATES = {"lost": "lost", "stuck": "stuck", "water": "in the water"}
"""How the hero tells an animal what happened."""

FRIEND_FIXES = {
    "lost": (
        "They looked {wrong}, but it was not there. "
        "Then they looked {right}, and there was the {toy}!",
        "{friend} looked for a long time and found the {toy} {right}!",
    ),
    "stuck": (
        "{friend} found a long stick and pushed the {toy} down.",
        "{friend} climbed up and got the {toy} down.",
    ),
    "water": (
        "{friend} found a long stick and pulled the {toy} out of the {water}.",
        "{friend} got a net and pulled the {toy} out of the {water}.",
    ),
    "taken": (
        "They gave the {thief} a {food}, and the {thief} gave the {toy} back.",
        "{friend} gave the {thief} a {food}. Then the {thief} let go of the {toy}.",
    ),
    "broken": (
        "They took the {toy} to {her} {adult}. {He_adult} fixed it with some glue.",
        "{friend} found some glue, and they fixed the {toy}.",
    ),
    "lonely": (
        '"I have no friends," said {friend}. "I will be your friend," said {hero}.',
        '"I have no toys," said {friend}. "You can play with my {toy}," said {hero}.',
    ),
}

LONE_FIXES = {
    "lost": (
        "They looked {wrong}, but it was not there. "
        "Then they looked {right}, and there was the {toy}!",
        "The {animal} looked {right} and found the {toy}!",
    ),
    "stuck": (
        "The {animal} went up and pushed the {toy} down.",
        "The {animal} went up and got the {toy}.",
    ),
    "water": (
        "The {animal} swam into the {water} and got the {toy}.",
        "The {animal} jumped into the {water} and pushed the {toy} back.",
    ),
    "taken": (
        "Then {she} gave the {thief} a {food}, and the {thief} gave the {toy} back.",
        "The {thief} only wanted to play. {hero} gave the {thief} a {food} and got the {toy} back.",
    ),
    "broken": (
        "{She} took the {toy} to {her} {adult}. {He_adult} fixed it with some glue.",
        "{Her} {adult} helped {them} fix the {toy}.",
    ),
}

THANKS = (
    '{hero} was so happy. "Thank you, {helper}!" {she} said.',
    'Now {hero} was happy again. {She} said, "Thank you, {helper}!"',
    '"Thank you, {helper}!" said {hero} with a big smile.',
)

FRIEND_THANKS = (
    '{friend} was so happy. "Thank you, {hero}!" {he_friend} said.',
    '"Thank you, {hero}!" said {friend} with a big smile.',
)

JOY = ("{hero} was so happy.", "Now {hero} was happy again.", "{She} had a big smile.")
"""What stands for the thanks when there is nobody to thank."""

AFTERWARDS = (
    "They played with the {toy} together.",
    "They played until the sun went down.",
    "Then they went home together.",
)

ENDINGS = {
    "lost": (
        "From that day on, {hero} always took good care of the {toy}.",
        "{hero} never lost the {toy} again.",
    ),
    "stuck": (
        "That night, {hero} went to sleep with the {toy} next to {them}.",
        "From that day on, {hero} was more careful.",
    ),
    "water": (
        "The {toy} was wet, but {hero} still loved it.",
        "From that day on, {hero} stayed away from the {water}.",
    ),
    "taken": (
        "From that day on, {hero} and the {thief} were best friends.",
        "{hero} learned that it is good to share.",
    ),
    "lonely": (
        "From that day on, {hero} and {friend} were best friends.",
        "{hero} learned that it is good to share.",
    ),
    "broken": (
        "The {toy} was as good as new.",
        "From that day on, {hero} always took good care of the {toy}.",
    ),
}
