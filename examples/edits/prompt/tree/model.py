"""A stand-in for a language model that follows the prompt on stdin and does no more.

So a better prompt gives better answers, on every computer and without a key.
"""

import json
import re
import sys

prompt, _, message = sys.stdin.read().partition("Message:")
number = re.search(r"\d+", message)
answer = {"product": "lamp", "count": int(number[0]) if number else 1}
german = "Lampe" in message
if "language of the message" in prompt and german:
    answer["product"] = "Lampe"
if "JSON" in prompt:
    print(json.dumps(answer))
else:
    print(f"The customer wants {answer['count']} x {answer['product']}.")
