"""Capitals, and where they are."""

from __future__ import annotations

import random
from typing import Final

from models.corpus.turns import Exchange
from models.corpus.words import capitalised

CAPITALS: Final[dict[str, tuple[str, str]]] = {
    # country: (capital, continent)
    "France": ("Paris", "Europe"),
    "Germany": ("Berlin", "Europe"),
    "Italy": ("Rome", "Europe"),
    "Spain": ("Madrid", "Europe"),
    "Portugal": ("Lisbon", "Europe"),
    "England": ("London", "Europe"),
    "Scotland": ("Edinburgh", "Europe"),
    "Ireland": ("Dublin", "Europe"),
    "Belgium": ("Brussels", "Europe"),
    "Austria": ("Vienna", "Europe"),
    "Switzerland": ("Bern", "Europe"),
    "Poland": ("Warsaw", "Europe"),
    "Hungary": ("Budapest", "Europe"),
    "Greece": ("Athens", "Europe"),
    "Sweden": ("Stockholm", "Europe"),
    "Norway": ("Oslo", "Europe"),
    "Denmark": ("Copenhagen", "Europe"),
    "Finland": ("Helsinki", "Europe"),
    "Iceland": ("Reykjavik", "Europe"),
    "Estonia": ("Tallinn", "Europe"),
    "Latvia": ("Riga", "Europe"),
    "Lithuania": ("Vilnius", "Europe"),
    "Ukraine": ("Kyiv", "Europe"),
    "Romania": ("Bucharest", "Europe"),
    "Bulgaria": ("Sofia", "Europe"),
    "Croatia": ("Zagreb", "Europe"),
    "Serbia": ("Belgrade", "Europe"),
    "Slovenia": ("Ljubljana", "Europe"),
    "Slovakia": ("Bratislava", "Europe"),
    "Albania": ("Tirana", "Europe"),
    "Russia": ("Moscow", "Europe"),
    "Turkey": ("Ankara", "Asia"),
    "Georgia": ("Tbilisi", "Asia"),
    "Iran": ("Tehran", "Asia"),
    "Iraq": ("Baghdad", "Asia"),
    "Jordan": ("Amman", "Asia"),
    "Lebanon": ("Beirut", "Asia"),
    "Qatar": ("Doha", "Asia"),
    "India": ("New Delhi", "Asia"),
    "Pakistan": ("Islamabad", "Asia"),
    "Bangladesh": ("Dhaka", "Asia"),
    "Nepal": ("Kathmandu", "Asia"),
    "China": ("Beijing", "Asia"),
    "Japan": ("Tokyo", "Asia"),
    "South Korea": ("Seoul", "Asia"),
    "Mongolia": ("Ulaanbaatar", "Asia"),
    "Thailand": ("Bangkok", "Asia"),
    "Vietnam": ("Hanoi", "Asia"),
    "Cambodia": ("Phnom Penh", "Asia"),
    "Malaysia": ("Kuala Lumpur", "Asia"),
    "Indonesia": ("Jakarta", "Asia"),
    "the Philippines": ("Manila", "Asia"),
    "Egypt": ("Cairo", "Africa"),
    "Morocco": ("Rabat", "Africa"),
    "Tunisia": ("Tunis", "Africa"),
    "Algeria": ("Algiers", "Africa"),
    "Ethiopia": ("Addis Ababa", "Africa"),
    "Kenya": ("Nairobi", "Africa"),
    "Uganda": ("Kampala", "Africa"),
    "Ghana": ("Accra", "Africa"),
    "Nigeria": ("Abuja", "Africa"),
    "Senegal": ("Dakar", "Africa"),
    "Angola": ("Luanda", "Africa"),
    "Zambia": ("Lusaka", "Africa"),
    "Namibia": ("Windhoek", "Africa"),
    "Madagascar": ("Antananarivo", "Africa"),
    "Canada": ("Ottawa", "North America"),
    "the United States": ("Washington, D.C.", "North America"),
    "Mexico": ("Mexico City", "North America"),
    "Cuba": ("Havana", "North America"),
    "Jamaica": ("Kingston", "North America"),
    "Panama": ("Panama City", "North America"),
    "Brazil": ("Brasília", "South America"),
    "Argentina": ("Buenos Aires", "South America"),
    "Chile": ("Santiago", "South America"),
    "Peru": ("Lima", "South America"),
    "Colombia": ("Bogotá", "South America"),
    "Ecuador": ("Quito", "South America"),
    "Uruguay": ("Montevideo", "South America"),
    "Venezuela": ("Caracas", "South America"),
    "Australia": ("Canberra", "Oceania"),
    "New Zealand": ("Wellington", "Oceania"),
    "Fiji": ("Suva", "Oceania"),
}


def capital(rng: random.Random) -> Exchange:
    """The capital of a country, the country of a capital, or the continent of a country."""
    country = rng.choice(tuple(CAPITALS))
    city, continent = CAPITALS[country]
    kind = rng.random()
    if kind < 0.7:
        ask = rng.choice(
            (
                "What is the capital of {0}?", "What's the capital of {0}?",
                "Which city is the capital of {0}?", "Tell me the capital of {0}.",
                "Name the capital of {0}.", "The capital of {0} is?", "Capital of {0}?",
                "Do you know the capital of {0}?", "Can you tell me the capital of {0}?",
                "What is the capital city of {0}?", "I forgot the capital of {0}. What is it?",
                "Please tell me what the capital of {0} is.", "What city is the capital of {0}?",
                "I need the capital of {0}.", "Give me the capital of {0}.",
                "What would you say is the capital of {0}?", "The capital of {0}, please.",
                "What is {0}'s capital?",
            )
        )  # fmt: skip
        return ask.format(country), f"The capital of {country} is {city}."
    if kind < 0.87:
        ask = rng.choice(
            (
                "{0} is the capital of which country?", "Of which country is {0} the capital?",
                "Which country has {0} as its capital?", "Where is {0}?", "In which country is {0}?",
                "What country is {0} the capital of?",
            )
        )  # fmt: skip
        return ask.format(city), f"{city} is the capital of {country}."
    ask = rng.choice(("On which continent is {0}?", "Which continent is {0} in?", "What continent does {0} belong to?"))
    return ask.format(country), f"{capitalised(country)} is in {continent}."


def follow_up_capitals(rng: random.Random) -> list[Exchange]:
    """Several capitals, all but the first asked for in a few words."""
    exchanges: list[Exchange] = []
    for position, country in enumerate(rng.sample(tuple(CAPITALS), rng.randint(2, 4))):
        ask = (
            f"What is the capital of {country}?"
            if position == 0
            else rng.choice(("And of {0}?", "And {0}?", "What about {0}?", "And the capital of {0}?")).format(country)
        )
        exchanges.append((ask, f"The capital of {country} is {CAPITALS[country][0]}."))
    return exchanges
